"""The training loop, on a model of a few numbers."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra of that name")

from oasr_backend.export.conformer import ConformerCtc  # noqa: E402
from oasr_backend.training import demo  # noqa: E402
from oasr_backend.training.corpus import Corpus  # noqa: E402
from oasr_backend.training.examples import Recordings  # noqa: E402
from oasr_backend.training.loop import Schedule, train  # noqa: E402

SMALL = replace(demo.CONFIG, output_size=8, attention_heads=2, linear_units=8, num_blocks=1)
SCHEDULE = Schedule(num_epochs=2, batch_seconds=4.0, reduced_precision=False)


@pytest.fixture
def recordings(tmp_path):
    samples = (np.random.default_rng(0).standard_normal(16000 * 6) * 3000).astype(np.int16)
    speech = Corpus(samples, np.arange(7) * 16000, ["go"] * 6, ["v"] * 6)
    return Recordings(speech, tmp_path / "recordings", seed=1)


def small_model():
    torch.manual_seed(0)
    return ConformerCtc(SMALL)


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    schedule = Schedule(num_epochs=11, peak_rate=2e-3, warm_up_epochs=1.0)
    assert schedule.rate(0.5) == pytest.approx(1e-3)
    assert schedule.rate(1.0) == pytest.approx(2e-3)
    assert schedule.rate(6.0) == pytest.approx(1e-3)
    assert schedule.rate(11.0) == pytest.approx(0.0)


def test_a_stopped_training_goes_on_as_if_it_had_not_been(recordings, tmp_path):
    whole, stopped, resumed = small_model(), small_model(), small_model()
    said = []
    train(whole, recordings, SCHEDULE, tmp_path / "whole", say=said.append)
    folder = tmp_path / "stopped"
    train(stopped, recordings, SCHEDULE, folder, say=said.append)
    (folder / "epoch-2.pt").unlink()
    train(resumed, recordings, SCHEDULE, folder, say=said.append)
    assert [line.split(":")[0] for line in said] == [
        "epoch 1",
        "epoch 2",
        "epoch 1",
        "epoch 2",
        "epoch 2",
    ]
    for (name, one), other in zip(
        whole.state_dict().items(), resumed.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_new_model_normalizes_to_what_it_will_hear(recordings):
    cmvn = demo.new_model(recordings).encoder.global_cmvn
    assert cmvn.mean.shape == (80,)
    assert (cmvn.istd > 0).all()
    assert 0 < float(cmvn.mean.mean()) < 20


def test_the_model_ends_as_the_mean_of_the_last_epochs(recordings, tmp_path):
    model = small_model()
    train(model, recordings, replace(SCHEDULE, num_epochs=3, num_averaged=2), tmp_path, say=str)
    saved = [torch.load(tmp_path / f"epoch-{n}.pt", weights_only=True)["model"] for n in (2, 3)]
    for name, weights in model.state_dict().items():
        assert torch.allclose(weights, (saved[0][name] + saved[1][name]) / 2, atol=1e-6), name
