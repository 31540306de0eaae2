"""The packaged Whisper model on real speech: what it hears, and that nothing but the audio decides it."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from oasr_backend.errors import ClientError, ConfigError
from oasr_backend.features.log_mel import log_mel
from oasr_backend.models.base import Prepared, TranscribeOptions, Transcript
from oasr_backend.models.whisper import WhisperRecognizer
from oasr_backend.models.whisper_config import COMPUTE_TYPES, WhisperConfig
from oasr_backend.models.whisper_folder import find_model
from oasr_backend.models.whisper_words import ends_in_repetition
from oasr_backend.wer import word_error_rate
from tests.integration.random_whisper import save_random_model

ALL_TYPES = ", ".join(COMPUTE_TYPES)
DATA = Path(__file__).parents[1] / "data"
PLAIN = TranscribeOptions()
WORDS = TranscribeOptions(words=True)


def clips(folder):
    """Return {path: reference text} of a folder of clips."""
    with (DATA / folder / "transcripts.tsv").open(encoding="utf-8", newline="") as file:
        return {DATA / folder / name: text for name, text in csv.reader(file, delimiter="\t")}


REFERENCES = clips("librivox") | clips("cards") | clips("commands")


def read(path):
    return soundfile.read(path, dtype="float32")[0]


@pytest.fixture(scope="module")
def whisper():
    """The whole window of 30 s for every clip; `short` below has the shorter ones."""
    return WhisperRecognizer(WhisperConfig(short_window=False))


@pytest.fixture(scope="module")
def prepared(whisper):
    return [whisper.prepare(read(path), PLAIN) for path in REFERENCES]


@pytest.fixture(scope="module")
def alone(whisper, prepared):
    """What each clip gives by itself."""
    return [whisper.transcribe([piece])[0] for piece in prepared]


@pytest.mark.parametrize(
    ("folder", "limit"), [("librivox", 0.05), ("cards", 0.2), ("commands", 0.1)]
)
def test_real_speech_is_understood(alone, folder, limit):
    heard = dict(zip(REFERENCES, alone, strict=True))
    references = clips(folder)
    rate = word_error_rate(list(references.values()), [heard[path].text for path in references])
    print(f"{folder}: {rate:.1%} of the words wrong")
    assert rate <= limit


def test_a_transcript_carries_its_tokens_confidence_and_language(whisper, alone):
    for transcript in alone:
        assert transcript.text == whisper.vocabulary.text(transcript.tokens).strip()
        assert 0.3 < transcript.confidence < 1.0
        assert transcript.language == "en"


@pytest.mark.parametrize("batch_size", [2, 5, 12])
def test_a_clip_gives_the_same_text_in_every_batch_and_order(whisper, prepared, alone, batch_size):
    indices = [random.Random(batch_size).randrange(len(prepared)) for _ in range(batch_size)]
    batch = whisper.transcribe([prepared[index] for index in indices])
    assert [(each.text, each.tokens) for each in batch] == [
        (alone[index].text, alone[index].tokens) for index in indices
    ]


def test_asking_for_words_changes_neither_text_nor_batch_mates(whisper, prepared, alone):
    batch = [
        replace(piece, options=[PLAIN, WORDS][index % 2]) for index, piece in enumerate(prepared)
    ]
    transcripts = whisper.transcribe(batch)
    assert [each.text for each in transcripts] == [each.text for each in alone]
    assert [bool(each.words) for each in transcripts] == [False, True] * 6
    [by_itself] = whisper.transcribe([batch[1]])
    assert [(word.text, word.start_s) for word in by_itself.words] == [
        (word.text, word.start_s) for word in transcripts[1].words
    ]


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_words_are_the_text_in_order_within_the_clip(whisper, path):
    samples = read(path)
    [transcript] = whisper.transcribe([whisper.prepare(samples, WORDS)])
    assert " ".join(word.text for word in transcript.words) == transcript.text
    times_s = [time_s for word in transcript.words for time_s in (word.start_s, word.end_s)]
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0.0
    assert times_s[-1] <= len(samples) / 16_000 + 0.01
    assert all(0.0 <= word.confidence <= 1.0 for word in transcript.words)


def test_words_are_found_where_they_are_said(whisper):
    speech = read(DATA / "librivox" / "sense_and_sensibility_01_austen_64kb-0930.wav")
    silence = np.zeros(5 * 16_000, np.float32)
    [plain] = whisper.transcribe([whisper.prepare(speech, WORDS)])
    [delayed] = whisper.transcribe([whisper.prepare(np.concatenate([silence, speech]), WORDS)])
    assert delayed.words[0].start_s > 4.5
    for early, late in pairwise([plain.words, delayed.words]):
        assert [word.end_s + 5.0 for word in early[:-1]] == pytest.approx(
            [word.end_s for word in late[:-1]], abs=0.2
        )


@pytest.mark.parametrize("num_samples", [0, 1, 160, 399])
@pytest.mark.parametrize("vad_filter", [True, False])
def test_less_than_25_ms_is_no_speech(whisper, num_samples, vad_filter, monkeypatch):
    monkeypatch.setattr(whisper, "config", WhisperConfig(vad_filter=vad_filter, short_window=False))
    prepared = whisper.prepare(read(next(iter(REFERENCES)))[8_000 : 8_000 + num_samples], PLAIN)
    assert not prepared.has_speech


def test_silence_and_noise_are_no_speech(whisper):
    rng = np.random.default_rng(0)
    for samples in (np.zeros(480_000), 0.05 * rng.standard_normal(48_000)):
        assert not whisper.prepare(samples.astype(np.float32), PLAIN).has_speech


@pytest.mark.parametrize("num_samples", [400, 1_600, 480_000])
def test_without_the_voice_detector_any_length_is_transcribed_without_an_error(
    whisper, num_samples
):
    noise = 0.05 * np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)
    piece = Prepared(log_mel(noise), -(-num_samples // 160), WORDS)
    [transcript] = whisper.transcribe([piece])
    assert isinstance(transcript, Transcript)


def test_a_batch_of_nothing_is_nothing(whisper):
    assert whisper.transcribe([]) == []


def test_quiet_speech_is_understood_as_loud_speech_is(whisper, alone):
    quiet = [whisper.prepare(read(path) * np.float32(0.001), PLAIN) for path in clips("librivox")]
    texts = [each.text for each in whisper.transcribe(quiet)]
    assert word_error_rate([each.text for each in alone[: len(texts)]], texts) < 0.05


class LoopsOnce:
    """The real model, whose first answer for one row of a batch is a loop."""

    def __init__(self, model, row, looped):
        self._model = model
        self._row = row
        self._looped = looped
        self.settings = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def generate(self, encoded, prompts, **settings):
        results = self._model.generate(encoded, prompts, **settings)
        self.settings.append((len(prompts), settings.get("no_repeat_ngram_size", 0)))
        if len(self.settings) == 1:
            score = SimpleNamespace(sequences_ids=[self._looped], scores=[-0.1], no_speech_prob=0.0)
            results[self._row] = score
        return results


def test_a_row_that_repeats_itself_is_decoded_again_alone_without_repetition(
    whisper, prepared, alone, monkeypatch
):
    loop = list(alone[1].tokens) * 20
    model = LoopsOnce(whisper._model, 1, loop)
    monkeypatch.setattr(whisper, "_model", model)
    transcripts = whisper.transcribe(prepared[:3])
    assert [each.text for each in transcripts] == [each.text for each in alone[:3]]
    assert model.settings == [(3, 0), (1, 4)]


def test_a_second_try_gives_the_same_words_and_times_as_a_first(whisper, prepared, monkeypatch):
    piece = replace(prepared[0], options=WORDS)
    [expected] = whisper.transcribe([piece])
    monkeypatch.setattr(whisper, "_model", LoopsOnce(whisper._model, 0, list(expected.tokens) * 20))
    [transcript] = whisper.transcribe([piece])
    assert (transcript.text, transcript.words) == (expected.text, expected.words)


CANNOT_TRANSLATE = (
    "task is 'translate', but the model is English-only and can only transcribe: leave task out, or serve a "
    "multilingual model (model_dir)"
)
CANNOT_HEAR_GERMAN = (
    "language is 'de', but the model is English-only: leave language out or set it to 'en', or serve a multilingual "
    "model (model_dir)"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            TranscribeOptions(task="summarize"),
            "task is 'summarize'; allowed are transcribe and translate: choose one of them",
        ),
        (TranscribeOptions(task="translate"), CANNOT_TRANSLATE),
        (TranscribeOptions(language="de"), CANNOT_HEAR_GERMAN),
    ],
    ids=["unknown task", "translate", "language"],
)
def test_what_an_english_model_cannot_do_is_refused(whisper, options, text):
    with pytest.raises(ClientError) as caught:
        whisper.check_options(options)
    assert str(caught.value) == text


@pytest.mark.parametrize("language", [None, "en"])
def test_english_is_accepted_by_an_english_model(whisper, language):
    whisper.check_options(TranscribeOptions(language=language))


@pytest.mark.parametrize(("num_frames", "num_tokens"), [(1, 1), (200, 7), (600, 21)])
def test_a_rehearsal_decodes_what_speech_of_that_length_has(
    whisper, monkeypatch, num_frames, num_tokens
):
    drafts = []
    generate = whisper._generate
    monkeypatch.setattr(
        whisper, "_generate", lambda *given, **more: drafts.extend(generate(*given, **more))
    )
    whisper.rehearse(2, num_frames)
    assert [len(draft.tokens) for draft in drafts] == [num_tokens] * 2


def test_only_speech_counts_where_jobs_are_ordered_by_it(whisper):
    speech = read(DATA / "librivox" / "sense_and_sensibility_01_austen_64kb-0930.wav")
    padded_clip = np.concatenate([np.zeros(6 * 16_000, np.float32), speech])
    counted = TranscribeOptions(speech_frames=True)
    plain, padded_piece = (whisper.prepare(each, counted) for each in (speech, padded_clip))
    assert plain.num_frames * 0.6 < plain.speech_frames < plain.num_frames
    assert padded_piece.num_frames == plain.num_frames + 600
    assert padded_piece.speech_frames == pytest.approx(plain.speech_frames, abs=20)
    assert whisper.prepare(speech, PLAIN).speech_frames is None
    assert not whisper.prepare(np.zeros(48_000, np.float32), counted).has_speech


def test_without_the_voice_detector_no_speech_is_counted(whisper, monkeypatch):
    monkeypatch.setattr(whisper, "config", WhisperConfig(vad_filter=False))
    speech = read(next(iter(REFERENCES)))
    prepared = whisper.prepare(speech, TranscribeOptions(speech_frames=True))
    assert (prepared.has_speech, prepared.speech_frames) == (True, None)


def test_memory_does_not_grow_over_many_batches(whisper):
    def resident_mb():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    quick = WhisperRecognizer(WhisperConfig(beam_size=1, short_window=False), whisper._detector)
    samples = read(DATA / "cards" / "001.wav")

    prompt = quick._prompt("en", "transcribe")

    def run(num_batches):
        for index in range(num_batches):
            batch = [quick.prepare(samples, WORDS) for _ in range(1 + index % 4)]
            encoded = quick._encode(batch, 400)
            for draft in quick._generate(encoded, [prompt] * len(batch), max_length=8):
                quick._transcript(draft, batch[0], prompt, "en")

    run(20)
    before_mb = resident_mb()
    run(60)
    assert resident_mb() - before_mb < 20


# With random weights the text is nonsense; what is asked of the model is not.


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multilingual")
    save_random_model(folder)
    return folder


@pytest.fixture
def multilingual(random_folder, whisper):
    config = WhisperConfig(
        model_dir=str(random_folder), compute_type="float32", beam_size=1, short_window=False
    )
    return WhisperRecognizer(config, whisper._detector)


@pytest.fixture
def noises():
    rng = np.random.default_rng(0)
    return [log_mel(0.1 * rng.standard_normal(16_000).astype(np.float32)) for _ in range(4)]


def test_languages_and_tasks_share_a_batch(multilingual, noises, monkeypatch):
    prompts = []

    def generate(encoded, batch_prompts, **settings):
        prompts.extend(batch_prompts)
        return [SimpleNamespace(sequences_ids=[[5]], scores=[-0.1], no_speech_prob=0.0)] * len(
            batch_prompts
        )

    model = SimpleNamespace(
        is_multilingual=True,
        encode=multilingual._model.encode,
        detect_language=multilingual._model.detect_language,
        generate=generate,
    )
    monkeypatch.setattr(multilingual, "_model", model)
    asked = [
        TranscribeOptions("de"),
        TranscribeOptions("ja", "translate"),
        TranscribeOptions(),
        TranscribeOptions("haw"),
    ]
    batch = [Prepared(noise, 100, options) for noise, options in zip(noises, asked, strict=True)]
    detected = multilingual.transcribe(batch)[2].language
    assert detected in multilingual.languages
    special = multilingual.vocabulary.special
    assert prompts == [
        [
            special(token)
            for token in (
                "<|startoftranscript|>",
                f"<|{language}|>",
                f"<|{task}|>",
                "<|notimestamps|>",
            )
        ]
        for language, task in [
            ("de", "transcribe"),
            ("ja", "translate"),
            (detected, "transcribe"),
            ("haw", "transcribe"),
        ]
    ]


def test_a_detected_language_does_not_depend_on_batch_mates(multilingual, noises):
    batch = [Prepared(noise, 100, WORDS) for noise in noises]
    together = multilingual.transcribe(batch)
    apart = [multilingual.transcribe([piece])[0] for piece in batch]
    assert [(each.language, each.text) for each in together] == [
        (each.language, each.text) for each in apart
    ]


def test_a_multilingual_model_rehearses_too(multilingual, monkeypatch):
    drafts = []
    generate = multilingual._generate
    monkeypatch.setattr(
        multilingual, "_generate", lambda *given, **more: drafts.extend(generate(*given, **more))
    )
    multilingual.rehearse(2, 600)
    assert len(drafts) == 2


def test_every_language_is_accepted_and_others_are_refused(multilingual):
    for language in multilingual.languages:
        multilingual.check_options(TranscribeOptions(language, "translate"))
    with pytest.raises(ClientError) as caught:
        multilingual.check_options(TranscribeOptions("xx"))
    assert str(caught.value) == (
        f"language is 'xx'; allowed are the codes {', '.join(multilingual.languages)}: choose one of them, or leave "
        "language out to have it detected"
    )


def test_a_model_without_alignment_heads_gives_text_without_words(
    random_folder, whisper, noises, tmp_path
):
    for path in random_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(
        '{"suppress_ids": [], "suppress_ids_begin": [], "lang_ids": [50259]}'
    )
    config = WhisperConfig(
        model_dir=str(tmp_path), compute_type="float32", beam_size=1, short_window=False
    )
    [transcript] = WhisperRecognizer(config, whisper._detector).transcribe(
        [Prepared(noises[0], 100, WORDS)]
    )
    assert transcript.text
    assert transcript.words == ()


@pytest.fixture(scope="module")
def short(whisper):
    return WhisperRecognizer(WhisperConfig(short_window=True), whisper._detector)


def test_a_short_window_follows_from_the_length_of_the_clip_alone(short, whisper):
    lengths = [1, 249, 250, 550, 551, 1_251, 1_750, 1_751, 3_000]
    windows = [3_000, 3_000, 800, 800, 1_000, 2_000, 2_000, 3_000, 3_000]
    assert [short.window_frames(length) for length in lengths] == windows
    assert {whisper.window_frames(length) for length in lengths} == {3_000}


def test_clips_of_different_windows_come_back_in_order(short, prepared):
    apart = [short.transcribe([piece])[0] for piece in prepared]
    together = short.transcribe(prepared)
    assert [(each.text, each.tokens) for each in together] == [
        (each.text, each.tokens) for each in apart
    ]


def test_short_windows_understand_as_much(short, prepared, alone):
    references = list(REFERENCES.values())
    full = word_error_rate(references, [each.text for each in alone])
    rate = word_error_rate(references, [each.text for each in short.transcribe(prepared)])
    print(f"short windows: {rate:.1%} of the words wrong, full windows: {full:.1%}")
    assert rate <= full + 0.03


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("10 of clubs.", False),
        ("10 of clubs 10 of clubs", True),
        ("He was not. He was not!", True),
        ("that that is", False),
        ("five five", True),
    ],
)
def test_a_phrase_said_twice_at_the_end_is_found(text, expected):
    assert ends_in_repetition(text) == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "device is 'tpu'; allowed are auto, cpu, cuda: set it to one of them"),
        (
            {"compute_type": "int4"},
            f"compute_type is 'int4'; allowed are {', '.join(COMPUTE_TYPES)}: set it to one of them",
        ),
        ({"beam_size": 0}, "beam_size is 0; allowed are 1 to 32: set it to a value between them"),
        (
            {"intra_threads": -1},
            "intra_threads is -1; allowed are 0 to 1024: set it to a value between them",
        ),
        (
            {"vad_threshold": 1.0},
            "vad_threshold is 1.0; allowed are 0.01 to 0.99: set it to a value between them",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ConfigError) as caught:
        WhisperConfig(**options)
    assert str(caught.value) == text


def test_a_folder_without_a_model_says_what_is_missing(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        find_model(str(tmp_path))
    assert str(caught.value) == (
        f"model_dir is '{tmp_path}', but the folder has no model.bin, no vocabulary.json (or vocabulary.txt): it must "
        "be a Whisper model in CTranslate2's format; `ct2-transformers-converter --model openai/whisper-small "
        "--output_dir FOLDER` makes one"
    )


def test_a_name_that_is_neither_folder_nor_model_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"model_dir is '.*/nothing', which is neither a folder here nor a model"
    ):
        find_model(str(tmp_path / "nothing"))


@pytest.mark.parametrize("name", ["small.en", "Systran/faster-whisper-small"])
def test_a_hub_that_cannot_be_reached_is_said_with_the_remedy(name, monkeypatch, tmp_path):
    def unreachable(name, local_files_only=False):
        raise OSError("not cached" if local_files_only else "Name or service not known\nand more")

    monkeypatch.setattr("faster_whisper.utils.download_model", unreachable)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find_model(name)
    assert str(caught.value) == (
        f"model_dir is '{name}', a model hub's name, and could not be downloaded (OSError: Name or service not "
        "known): download the folder on a machine that can (`hf download Systran/faster-whisper-small --local-dir "
        "FOLDER`), copy it here and set model_dir to it"
    )


def test_a_model_in_the_hub_cache_needs_no_network(monkeypatch):
    def cached_only(name, local_files_only=False):
        assert local_files_only, "the network was asked"
        return str(find_model(""))

    monkeypatch.setattr("faster_whisper.utils.download_model", cached_only)
    assert find_model("Systran/faster-whisper-tiny.en") == find_model("")


def test_a_broken_model_is_refused_with_the_reason(tmp_path, whisper):
    for name in ("config.json", "vocabulary.txt"):
        (tmp_path / name).write_bytes((find_model("") / name).read_bytes())
    (tmp_path / "model.bin").write_bytes(b"\x80\x04nonsense")
    with pytest.raises(
        ConfigError, match=f"the Whisper model in {tmp_path} cannot be loaded on device 'cpu'"
    ):
        WhisperRecognizer(WhisperConfig(model_dir=str(tmp_path), device="cpu"), whisper._detector)
