"""What all tests share: one thread, so that small tensors are fast and results do not depend on cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
