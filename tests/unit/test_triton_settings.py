"""A `config.pbtxt` becomes options, or says what is wrong with it."""

import math
import re
from pathlib import Path

import pytest

from oasr_backend.benchmark.line_up import MARGIN
from oasr_backend.config import EngineConfig
from oasr_backend.errors import ConfigError
from oasr_backend.models.whisper import WhisperConfig
from oasr_backend.scheduler import Scheduler
from oasr_backend.triton.settings import check_streaming, read_settings

ROOT = Path(__file__).parents[2]
POLICIES = ["fcfs", "bucket", "window", "sjf", "hrrn", "cost", "adaptive"]


def model_config(sizes=(1, 2, 4), max_batch_size=8, **parameters):
    return {
        "name": "asr_offline",
        "max_batch_size": max_batch_size,
        "dynamic_batching": {"preferred_batch_size": list(sizes)},
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def test_the_ladder_and_the_cap_are_tritons():
    settings = read_settings(model_config(schedule_policy="fcfs", max_waiting="20", beam_size="1"))
    assert settings.engine_config(3000) == EngineConfig(
        max_batch_size=8,
        preferred_batch_size=(1, 2, 4),
        schedule_policy="fcfs",
        max_waiting=20,
        fixed_window_frames=3000,
    )
    assert settings.family_options == WhisperConfig(beam_size=1)


def test_none_and_inf_are_readable():
    settings = read_settings(model_config(max_batch_frames="none", max_wait_time="inf"))
    config = settings.engine_config(None)
    assert (config.max_batch_frames, config.max_wait_time) == (None, float("inf"))


def test_scheduling_options_are_parameters():
    settings = read_settings(
        model_config(
            schedule_policy="cost", tenant_fairness="true", tenant_weights="a=2, b=0.5", kappa="3.5"
        )
    )
    config = settings.engine_config(None)
    assert (config.schedule_policy, config.tenant_fairness, config.kappa) == ("cost", True, 3.5)
    assert config.tenant_weights == {"a": 2.0, "b": 0.5}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("adaptive_kappa", "true", True),
        ("job_size", "vad", "vad"),
        ("kappa", "none", None),
        ("max_tokens", "448", 448),
        ("tenant_fairness", "true", True),
        ("tenant_weights", "a=2,b=0.5", {"a": 2.0, "b": 0.5}),
        ("length_window_factor", "8", 8),
        ("length_bucket_ratio", "0.5", 0.5),
        ("max_offline_pad_ratio", "0", 0.0),
        ("max_batch_frames", "12000", 12000),
        ("max_wait_time", "inf", math.inf),
        ("cost_exponent", "0", 0.0),
        ("cost_margin", "0.1", 0.1),
        ("measure_costs_s", "0.5", 0.5),
        ("cost_table_path", "/tmp/costs.json", "/tmp/costs.json"),
        *[("schedule_policy", name, name) for name in POLICIES],
    ],
)
def test_every_scheduling_option_is_set_by_a_parameter_of_its_name(name, text, value):
    config = read_settings(model_config(**{name: text})).engine_config(None)
    assert getattr(config, name) == value
    Scheduler(config)


def test_the_shipped_policy_is_cost():
    text = (ROOT / "model_repository" / "asr_offline" / "config.pbtxt").read_text()
    shipped = dict(re.findall(r'parameters { key: "(.*)" value { string_value: "(.*)" } }', text))
    config = read_settings(model_config(**shipped)).engine_config(3000)
    assert (config.schedule_policy, config.cost_margin) == ("cost", 0.1)
    assert config.measure_costs_s == 5.0
    assert {"cost_margin": shipped["cost_margin"]} == MARGIN  # what is measured in process too


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (
            model_config(max_wating="3"),
            "parameters hold max_wating = '3', which is no option; it must be one of ",
        ),
        (
            model_config(max_waiting="many"),
            "max_waiting is 'many'; it must be a whole number: correct it",
        ),
        (model_config(max_waiting="0"), "max_waiting is 0; it must be at least 1: raise it"),
        (model_config(max_wait_time="nan"), "max_wait_time is 'nan'; it must be a number"),
        (
            model_config(measure_costs_s="-1"),
            "measure_costs_s is -1.0; it must be at least 0: raise it",
        ),
        (model_config(vad_filter="perhaps"), "vad_filter is 'perhaps'; it must be true or false"),
        (
            model_config(tenant_weights="a"),
            "tenant_weights is 'a'; it must be a list as name=weight,name=weight",
        ),
        (
            model_config(tenant_weights="a=0"),
            "tenant_weights gives 'a' 0.0; a weight must be above 0: raise it",
        ),
        (
            model_config(job_size="bytes"),
            "job_size is 'bytes'; it must be one of frames, tokens, vad",
        ),
        (
            model_config(length_bucket_ratio="2"),
            "length_bucket_ratio is 2.0; it must be from 0 to 1: correct it",
        ),
        (
            model_config(model_family="kaldi"),
            "model_family is 'kaldi'; it must be one of ctc, whisper: choose one of them",
        ),
        (
            model_config(model_family="ctc", vad_filter="true", device="auto", beam_size="1"),
            (
                "parameters hold device, vad_filter, for models of model_family 'whisper'; this one's is 'ctc': "
                "remove them"
            ),
        ),
        (
            model_config() | {"sequence_batching": {}},
            "model_family is 'whisper', which cannot stream; of streams it must be one of ctc: choose one, or ",
        ),
        (
            model_config(max_batch_size=4, sizes=(1, 8)),
            (
                "preferred_batch_size holds 8; every size must be from 1 to max_batch_size (4): "
                "drop it or raise max_batch_size"
            ),
        ),
        (model_config(max_batch_size=0), "max_batch_size is 0; it must be at least 1: raise it"),
        (
            model_config(preferred_batch_size="4"),
            "parameters hold preferred_batch_size = '4'; it is a field of config.pbtxt itself: ",
        ),
        (
            model_config(fixed_window_frames="3"),
            "parameters hold fixed_window_frames = '3', which is no option",
        ),
    ],
)
def test_a_wrong_configuration_refuses_to_load(config, start):
    with pytest.raises(ConfigError) as caught:
        read_settings(config)
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("batching", "bounded"),
    [
        ({}, False),
        ({"default_queue_policy": {"max_queue_size": 0}}, False),
        ({"default_queue_policy": {"max_queue_size": 8}}, True),
        ({"priority_queue_policy": {"1": {}, "2": {"max_queue_size": "8"}}}, True),
    ],
)
def test_whether_triton_bounds_its_queue_is_known(batching, bounded):
    config = model_config()
    config["dynamic_batching"] |= batching
    assert read_settings(config).bounds_triton_queue is bounded


def test_an_option_of_the_other_engine_is_warned_of(caplog):
    read_settings(model_config(max_idle_s="5", max_audio_s="60"))
    assert caplog.messages == [
        "parameters hold max_idle_s, which is for streams: it does nothing here"
    ]
    caplog.clear()
    streams = model_config(model_family="ctc", max_idle_s="5", max_audio_s="60")
    read_settings(streams | {"sequence_batching": {}})
    assert caplog.messages == [
        "parameters hold max_audio_s, which is for whole utterances: it does nothing here"
    ]


@pytest.mark.parametrize(
    ("idle_us", "max_idle_s", "forgotten_after_s"),
    [("60000000", 60, None), ("60000000", 61, 60), (None, 1, None), (None, 2, 1)],
)
def test_streams_that_triton_forgets_before_the_engine_does_are_warned_of(
    caplog, idle_us, max_idle_s, forgotten_after_s
):
    batching = {"oldest": {"max_candidate_sequences": 2048}}
    if idle_us:
        batching["max_sequence_idle_microseconds"] = idle_us
    check_streaming({"sequence_batching": batching}, EngineConfig(max_idle_s=max_idle_s))
    if forgotten_after_s is None:
        assert not caplog.messages
    else:
        [message] = caplog.messages
        assert f"Triton forgets a stream that sends nothing for {forgotten_after_s} s" in message
        assert f"raise that to {max_idle_s * 1_000_000}" in message
