"""Bugs of games of the mech arena: zone, end, rewards, rows, symmetry, actions, the scripted player."""

from __future__ import annotations

import functools

from recollect.tasks.mech import (
    MechArena,
    actions,
    maps,
    observe,
    projectiles,
    rewards,
    sensing,
    start,
    zone,
)
from recollect.tasks.mech.bot import MechBot
from tests.mutants.mech_bugs import bug
from tests.tasks.mech import (
    test_batches,
    test_bot,
    test_captured,
    test_hidden,
    test_inputs,
    test_mirror,
    test_reference,
    test_rewards,
    test_sensing,
    test_zone,
)

planted = functools.partial(test_reference.test_planted_states, 3, "partial")
wreck_in_zone = functools.partial(test_zone.test_ticks, [1], [], [2], (1.0, 0.0))
draw = functools.partial(test_zone.test_end_by_time, (2.0, 2.0), (10.0, 10.0), 0.0)
telescope = functools.partial(test_rewards.check_telescope, 1.0)
mirror = functools.partial(test_mirror.check_game, 3, 20)
captured = functools.partial(test_captured.check_paths, 3, 5)
batch = functools.partial(test_batches.check_batch, 5, 3)

MECH_GAMES = [
    bug(
        "the zone counts wrecks",
        wreck_in_zone,
        "zone.hold(task).tick[0]",
        (zone, "hold", "inside = arena.alive & within", "inside = within"),
    ),
    bug(
        "a draw is won by blue",
        draw,
        "float(task.won) == won",
        (zone, "winner", "torch.zeros_like", "torch.ones_like"),
    ),
    bug(
        "the score of the zone is the other side's",
        wreck_in_zone,
        "task.score[0]",
        (MechArena, "_advance", "held.tick * DECISION", "held.tick.flip(1) * DECISION"),
    ),
    bug(
        "the potential does not end at 0",
        telescope,
        "assert_close",
        (rewards, "of", " * ~is_over.view(-1, 1, 1)", ""),
    ),
    bug(
        "a death outside counts half if the zone is contested",
        test_rewards.test_combat_in_a_contested_zone,
        "it dies outside",
        (rewards, "of", "held.contested & held.within", "held.contested"),
    ),
    bug(
        "the dead earn",
        test_batches.test_dead_rows,
        "not value[died_before].any()",
        (rewards, "of", "part * lived", "part"),
    ),
    bug(
        "absent mechs live",
        test_batches.test_absent_mechs_take_no_part,
        "step.valid",
        (start, "places", "takes_part * tables.hp", "(takes_part | True) * tables.hp"),
    ),
    bug(
        "what fired is kept from decision to decision",
        planted,
        "fired",
        (MechArena, "_advance", "self.fired.zero_()", "pass"),
    ),
    bug(
        "cells are not mirrored at their edges",
        test_mirror.test_cells_are_mirrored,
        "maps.cell(-sx * x, -sy * y)",
        (maps, "_along", ".to(torch.int32).add_(HALF - 1).add_(x >= 0)", ".floor().int().add_(HALF)"),
    ),
    bug(
        "the coarse map has one side of a step only",
        test_mirror.test_maps_are_symmetric,
        "coarse.flip(1)",
        (maps, "coarse", "for cells in (ahead, behind)", "for cells in (ahead,)"),
    ),
    bug(
        "an observation tells of hidden enemies",
        test_hidden.check_hidden,
        "private(obs",
        (observe, "_own", "arena.alive.sum(2, keepdim=True)", "arena.theirs(arena.hp).sum(2, keepdim=True)"),
    ),
    bug(
        "the fair bot knows all",
        test_hidden.check_hidden,
        "the bot knows",
        (MechBot, "play", "if self.knows_all:", "if True:"),
    ),
    bug(
        "the bot takes its place in the zone as if it were blue",
        mirror,
        "bots differ",
        (MechBot, "_towards_zone", "(0.5 * arena.facing)", "0.5"),
    ),
    bug(
        "sight depends on slot 0",
        batch,
        "assert_same_step",
        (sensing, "_clear", "red = slot * n + pairs % n", "red = pairs % n"),
    ),
    bug(
        "places without a shot have one on a GPU",
        captured,
        "value, whole.snapshot()[name]",
        (projectiles, "fly", "alive & flies.unsqueeze(1), kind", "alive, kind"),
    ),
    bug(
        "on a GPU sight reaches as far as the map",
        captured,
        "value, whole.snapshot()[name]",
        (sensing, "_clear", ".view(wanted.shape) & wanted", ".view(wanted.shape)"),
    ),
    bug(
        "the flat form means the opposite",
        test_inputs.test_flat_spaces_play_the_same_game,
        "assert torch.equal",
        (actions, "_parts", "argmax(-1)", "argmin(-1)"),
    ),
    bug(
        "what is no number counts as full speed",
        functools.partial(test_inputs.test_no_number_in_an_action_spoils_the_state, "hybrid"),
        "not task.vx.any()",
        (actions, "_within", ".nan_to_num(0.0)", ".nan_to_num(1.0)"),
    ),
    bug(
        "targets can be chosen though that is off",
        test_sensing.test_switches_keep_shapes_and_take_effect,
        "assert",
        (actions, "masks", " & arena.options.target_selection", ""),
    ),
    bug(
        "a curriculum changes what the game in progress pays",
        test_zone.test_the_reward_of_a_win_changes_with_the_next_game,
        "assert paid[0]",
        (rewards, "of", "arena.win_weight.view(-1, 1, 1)", "arena._win"),
    ),
    bug(
        "the bot waits behind obstacles for ever",
        test_bot.test_it_gets_on,
        "assert waits < 0.02 * ways",
        (MechBot, "_detour", "goes = self._waited < 0", "goes = self._waited > 1e9"),
    ),
    bug(
        "a resumed bot has forgotten its detours",
        test_bot.test_what_it_remembers_is_in_its_snapshot,
        "torch.equal(before[name], after[name])",
        (MechBot, "restore", "tensor.copy_(snapshot[name])", "pass"),
    ),
]
