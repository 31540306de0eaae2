"""What the engine knows of the cost of a batch before the first request, and where that is kept."""

import json
import logging

import pytest

from oasr_backend.config import EngineConfig
from oasr_backend.engine.costs import SHOW_EVERY_S, read_cost_table, write_cost_table
from oasr_backend.engine.metrics import MemoryMetrics
from oasr_backend.engine.offline import OfflineEngine
from oasr_backend.errors import ConfigError
from oasr_backend.scheduler import CostTable
from tests.fakes import FakeClock, FakeRecognizer, InlineExecutor


class Whisperish(FakeRecognizer):
    """Takes 0.25 s a batch, 0.25 s a row and 0.25 s a second of a row; every row counts for 3,000 frames."""

    max_piece_frames = 3000
    fixed_window_frames = 3000

    def rehearsal_s(self, num_rows, num_frames):
        return 0.25 + 0.25 * num_rows * (1 + num_frames // 100)


class Lengthwise(Whisperish):
    fixed_window_frames = None


def engine_of(recognizer, **options):
    clock = FakeClock()
    recognizer.clock = clock
    config = EngineConfig(
        **{
            "max_batch_size": 16,
            "preferred_batch_size": (1, 2, 4),
            "fixed_window_frames": recognizer.fixed_window_frames,
            "measure_costs_s": 100.0,
            **options,
        }
    )
    return OfflineEngine(
        config, recognizer, MemoryMetrics(), clock, InlineExecutor(), rehearsers=InlineExecutor()
    )


def warmed_up(recognizer, **options):
    engine = engine_of(recognizer, **options)
    engine.warm_up()
    return engine


def table_of(engine):
    return engine._scheduler.costs


def test_every_rung_is_measured_the_smallest_and_the_largest_first():
    recognizer = Whisperish()
    table = table_of(warmed_up(recognizer))
    assert recognizer.rehearsed == [(1, 1), (1, 600), (4, 1), (4, 600), (2, 600)]
    assert [table.batch_time_s(rows, 3000) for rows in (1, 2, 4)] == [2.0, 3.75, 7.25]


def test_where_a_row_costs_its_length_rungs_are_measured_at_a_few():
    recognizer = Lengthwise()
    table = table_of(warmed_up(recognizer, preferred_batch_size=(1, 4)))
    assert [shape for shape in recognizer.rehearsed if shape[1] > 1] == [
        *[(1, 200), (1, 600), (1, 1500)],
        *[(4, 600), (4, 200), (4, 1500)],
    ]
    assert table.batch_time_s(4, 1500) == 0.25 + 0.25 * 4 * 16
    assert table.batch_time_s(1, 400) == pytest.approx(0.25 + 0.25 * 5)


def test_batches_are_measured_side_by_side_where_they_run_so():
    recognizer = Whisperish()
    table = table_of(warmed_up(recognizer, parallel_batches=2))
    assert recognizer.rehearsed[:4] == [(1, 1)] * 2 + [(1, 600)] * 2
    # The fake machine runs one after the other, so that a batch takes twice as long as alone.
    assert [table.batch_time_s(rows, 3000) for rows in (1, 2, 4)] == [4.0, 7.5, 14.5]


def test_no_length_beyond_the_longest_piece_is_measured():
    recognizer = FakeRecognizer()
    warmed_up(recognizer, preferred_batch_size=(1,))
    assert {frames for _, frames in recognizer.rehearsed} == {1, 100}


def test_without_a_ladder_powers_of_two_and_the_cap_are_measured():
    recognizer = Whisperish()
    warmed_up(recognizer, preferred_batch_size=None, max_batch_size=12)
    assert [rows for rows, frames in recognizer.rehearsed if frames > 1] == [1, 12, 8, 4, 2]


class Disturbed(FakeRecognizer):
    """Takes 10 ms a row, and five times as long while something else runs: in its first six batches."""

    def rehearsal_s(self, num_rows, num_frames):
        return 0.01 * num_rows * (5 if len(self.rehearsed) <= 6 else 1)


def test_short_batches_are_measured_again_in_rounds_and_their_best_times_count():
    recognizer = Disturbed()
    table = table_of(warmed_up(recognizer))
    assert [table.batch_time_s(rows, 100) for rows in (1, 2, 4)] == pytest.approx(
        [0.01, 0.02, 0.04]
    )
    assert [rows for rows, frames in recognizer.rehearsed if frames > 1][:6] == [1, 4, 2, 1, 4, 2]
    assert recognizer.rehearsed.count((1, 100)) == 20


def test_batches_are_measured_again_only_while_the_time_lasts():
    recognizer = Disturbed()
    engine = engine_of(recognizer, measure_costs_s=0.6)
    started_at = recognizer.clock()
    engine.warm_up()
    assert 0.55 < recognizer.clock() - started_at < 0.61


def test_what_does_not_fit_the_time_limit_is_skipped_and_said(caplog):
    caplog.set_level(logging.INFO)
    recognizer = Whisperish()
    table = table_of(warmed_up(recognizer, measure_costs_s=6.0))
    # After 2.5 s one row is known to take 2.0, so four are thought to take 8 and two 4; half of that must fit.
    assert recognizer.rehearsed == [(1, 1), (1, 600), (2, 1), (2, 600)]
    assert table.batch_time_s(4, 3000) == 2 * 3.75
    assert caplog.messages[-2:] == [
        "batch times after 7.0 s of measuring: 1 × 3000 frames 2 s, 2 × 3000 frames 3.75 s, 4 × 3000 frames 7.5 s",
        (
            "batches of 4 rows were not measured within 6 s (measure_costs_s): they are taken to gain nothing over "
            "smaller ones, so that none may ever run: raise it"
        ),
    ]


class Stumbling(FakeRecognizer):
    """Takes 0.1 s a row, and once, in its first real batch of two rows, ten times as long."""

    max_piece_frames = 600

    def rehearsal_s(self, num_rows, num_frames):
        is_first = self.rehearsed.count((2, num_frames)) == 1
        return 0.1 * num_rows * (10 if num_rows == 2 and num_frames > 1 and is_first else 1)


def test_one_disturbance_does_not_rule_what_is_thought_of_a_size():
    recognizer = Stumbling()
    table = table_of(warmed_up(recognizer, preferred_batch_size=(1, 2), measure_costs_s=2.0))
    assert recognizer.rehearsed.count((2, 600)) == 1, "and no time for a second look"
    assert table.batch_time_s(2, 600) == pytest.approx(0.2), "no more than its rows one by one"
    table = table_of(warmed_up(Stumbling(), preferred_batch_size=(1, 2), measure_costs_s=9.0))
    assert table.batch_time_s(2, 600) == pytest.approx(0.2)


def test_where_time_is_short_a_typical_length_tells_how_much_a_rung_gains():
    recognizer = Lengthwise()
    table = table_of(warmed_up(recognizer, preferred_batch_size=(1, 4), measure_costs_s=14.0))
    # One row takes 1.0, 2.0 and 4.25 s; the four of 600 frames are known after 16.25 s.
    assert recognizer.rehearsed[-2:] == [(4, 1), (4, 600)]
    assert table.batch_time_s(4, 600) == 7.25
    assert table.batch_time_s(4, 200) == 7.25 / 2.0 * 1.0
    assert table.batch_time_s(4, 1500) == 7.25 / 2.0 * 4.25


def test_a_slow_machine_overruns_the_limit_by_one_batch_at_most():
    recognizer = Whisperish()
    warmed_up(recognizer, measure_costs_s=0.01)
    assert recognizer.rehearsed == [(1, 1)]


def test_nothing_is_run_or_measured_where_the_limit_is_0():
    recognizer = Whisperish()
    table = table_of(warmed_up(recognizer, measure_costs_s=0.0))
    assert recognizer.rehearsed == []
    assert table.batch_time_s(1, 3000) == CostTable().batch_time_s(1, 3000)


def test_every_measured_shape_is_a_metric_and_steps_renew_them_in_turn():
    engine = warmed_up(Whisperish())
    gauges = engine._metrics.gauges
    before = {
        ("oasr_batch_cost_seconds", "1", "3000"): 2.0,
        ("oasr_batch_cost_seconds", "2", "3000"): 3.75,
        ("oasr_batch_cost_seconds", "4", "3000"): 7.25,
    }
    assert gauges == before
    changed = []
    for _ in range(4):
        engine._costs.observe(2, 3000, 7.5)
        engine._costs.observe(2, 3000, 7.5)  # too soon to show
        engine._clock.advance(SHOW_EVERY_S)
        changed.append(
            {
                rows
                for (_, rows, _), value in gauges.items()
                if value != before["oasr_batch_cost_seconds", rows, "3000"]
            }
        )
    assert changed == [{"1"}, {"1", "4"}, {"1", "2", "4"}, {"1", "2", "4"}]
    assert gauges["oasr_batch_cost_seconds", "2", "3000"] == pytest.approx(7.5, rel=0.1)


class TestTheFile:
    def test_what_was_measured_is_written_at_load_and_what_was_learnt_at_the_end(self, tmp_path):
        path = tmp_path / "costs.json"
        engine = warmed_up(Whisperish(), cost_table_path=str(path))
        assert read_cost_table(path).batch_time_s(4, 3000) == 7.25
        for _ in range(100):
            engine._costs.observe(4, 3000, 14.5)
        engine.close()
        assert read_cost_table(path).batch_time_s(4, 3000) == pytest.approx(14.5, rel=0.02)
        assert [each.name for each in tmp_path.iterdir()] == ["costs.json"]

    def test_the_next_start_goes_on_from_it_and_measures_nothing_again(self, tmp_path):
        path = tmp_path / "costs.json"
        warmed_up(Whisperish(), cost_table_path=str(path))
        recognizer = Whisperish()
        table = table_of(warmed_up(recognizer, cost_table_path=str(path)))
        assert recognizer.rehearsed == [(1, 1), (4, 1)]  # to have memory touched
        assert table.batch_time_s(2, 3000) == 3.75

    def test_a_rung_that_it_lacks_is_measured(self, tmp_path):
        path = tmp_path / "costs.json"
        warmed_up(Whisperish(), cost_table_path=str(path), preferred_batch_size=(1, 4))
        recognizer = Whisperish()
        warmed_up(recognizer, cost_table_path=str(path))
        assert recognizer.rehearsed[-1] == (2, 600)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "no cost table: JSONDecodeError('Expecting value: line 1 column 1 (char 0)')"),
            ("[]", "no cost table: TypeError('list indices must be integers or slices, not str')"),
            ("{}", "no cost table: KeyError('fixed_s')"),
            ({"scale": "1"}, "no cost table: TypeError('must be real number, not str')"),
            ({"scale": float("nan")}, "no cost table: ValueError('it holds nan')"),
            ({"scale": -1.0}, "no cost table: ValueError('it holds -1.0')"),
            (
                {"fixed_s": 10**400},
                "no cost table: OverflowError('int too large to convert to float')",
            ),
            ({"grid": {"1": [[1, -1]]}}, "no cost table: ValueError('it holds -1')"),
            ({"grid": {"0": [[1, 1]]}}, "no cost table: ValueError('it has a batch of 0 rows')"),
            (
                {"grid": {"1": [["1", 1]]}},
                "no cost table: TypeError('must be real number, not str')",
            ),
            (
                {"grid": {"1": [1]}},
                "no cost table: TypeError('cannot unpack non-iterable int object')",
            ),
            (
                {"grid": []},
                "no cost table: AttributeError(\"'list' object has no attribute 'items'\")",
            ),
        ],
    )
    def test_a_file_that_holds_no_table_refuses_to_load(self, tmp_path, text, reason):
        path = tmp_path / "costs.json"
        path.write_text(
            text if isinstance(text, str) else json.dumps({**CostTable().as_dict(), **text})
        )
        with pytest.raises(ConfigError) as caught:
            engine_of(FakeRecognizer(), cost_table_path=str(path))
        assert str(caught.value) == (
            f"cost_table_path is '{path}', which cannot be read ({reason}): delete the file to have it measured "
            "anew, or name another"
        )

    def test_a_folder_in_its_place_refuses_to_load(self, tmp_path):
        with pytest.raises(ConfigError) as caught:
            engine_of(FakeRecognizer(), cost_table_path=str(tmp_path))
        assert str(caught.value) == (
            f"cost_table_path is '{tmp_path}', which cannot be read (Is a directory): delete the file to have it "
            "measured anew, or name another"
        )

    def test_a_file_that_cannot_be_written_refuses_to_load(self, tmp_path):
        path = tmp_path / "missing" / "costs.json"
        with pytest.raises(ConfigError) as caught:
            warmed_up(FakeRecognizer(), cost_table_path=str(path))
        assert str(caught.value) == (
            f"cost_table_path is '{path}', which cannot be written (No such file or directory): make its folder "
            "and let the server write there, or name another file"
        )

    def test_a_file_that_can_no_longer_be_written_stops_nobody_from_closing(self, tmp_path, caplog):
        folder = tmp_path / "folder"
        folder.mkdir()
        engine = warmed_up(FakeRecognizer(), cost_table_path=str(folder / "costs.json"))
        (folder / "costs.json").unlink()
        folder.rmdir()
        engine.close()
        assert caplog.messages[-1].startswith(
            f"cost_table_path: {folder}/costs.json cannot be written: "
        )

    def test_a_write_that_fails_leaves_the_old_file_whole(self, tmp_path):
        path = tmp_path / "costs.json"
        write_cost_table(path, CostTable())
        before = path.read_text()

        class Broken(CostTable):
            def as_dict(self):
                return {"fixed_s": object()}

        with pytest.raises(TypeError):
            write_cost_table(path, Broken())
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [
            ("costs.json", before)
        ]
