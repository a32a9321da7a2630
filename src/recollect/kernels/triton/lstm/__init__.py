"""The LSTM in Triton."""
