# SPDX-License-Identifier: Apache-2.0
"""Writes README.md beside it: every example by its task, from the first lines of the scripts.

python examples/index.py
"""

from __future__ import annotations

import ast
from pathlib import Path

from nnl.core.parameters.atomic import replacing

FOLDER = Path(__file__).resolve().parent
HEAD = """# Examples

Made by `python examples/index.py` from the first lines of the scripts. Each runs without set-up, on
data that a package ships or that it draws itself, at a small size; what it reached there is what it
printed on two cores. Networks and tools that others want are in `nnl.models`, `nnl.training` and
`nnl.metrics`.
"""
TASKS = {
    "Classification": """digits/train imagenet/train programs/resnet50 programs/dropblock
        programs/sdpoint references/tabular references/faces""",
    "Detection": "programs/yolov3 programs/faster_rcnn references/centernet references/detr",
    "Segmentation": "references/unet references/deeplab references/promptable",
    "Depth": "references/depth",
    "Pose": "references/pose",
    "Text in pictures": "references/ocr",
    "Language": """language/train language/tune language/talk programs/gpt2 programs/bert_cls
        programs/bert_qa""",
    "Speech and sound": """references/keyword_spotting references/conv_tasnet
        programs/music_transformer""",
    "Recommendation": "references/recommendation",
    "Time series": "references/time_series",
    "Reinforcement": "references/dqn references/ppo references/sac",
    "Images from noise": """generative/diffusion generative/flow_matching generative/dit
        generative/consistency generative/latent_diffusion generative/stylegan2
        generative/progressive_gan programs/dcgan""",
    "Images from images": """generative/pix2pix generative/cyclegan generative/instagan
        generative/stargan generative/reenactgan generative/esrgan generative/tecogan
        generative/vq_gan""",
    "Graphs": "references/gcn",
    "Few labels": """references/masked_autoencoder references/simclr references/dino
        references/wav2vec references/fixmatch""",
    "Few samples": "references/maml",
    "Smaller networks": """references/distillation references/pruning
        references/quantization""",
    "Architectures": "references/nas",
    "Explanations": "references/integrated_gradients",
    "C++": """cpp/train_lenet cpp/run_model cpp/continue_training cpp/chat cpp/serve
        cpp/classify_png cpp/classify""",
}


def scripts() -> set[str]:
    """The programs among the files, without their extensions."""
    found = {p for p in FOLDER.glob("*/*.py") if '__name__ == "__main__"' in p.read_text("utf-8")}
    found -= {FOLDER / "imagenet" / "photographs.py", FOLDER / "cpp" / "make_files.py"}
    found |= {p for p in FOLDER.glob("cpp/*.c*")}
    return {p.relative_to(FOLDER).with_suffix("").as_posix() for p in found}


def told(name: str) -> tuple[str, str, str]:
    """File, what it is, and what it reached, of a script."""
    path = next(FOLDER.glob(f"{name}.*"))
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        lines = text.splitlines()[1:]
        words = " ".join(line.strip("/* ") for line in lines[:8])
        return path.name, words.partition(". ")[0].partition(": ")[0].rstrip("."), ""
    doc = ast.get_docstring(ast.parse(text)) or ""
    after = doc.partition("Expected")[2].splitlines()[1:]
    reached = next((line.strip() for line in after if line.startswith("    ")), "")
    return path.name, doc.splitlines()[0].rstrip("."), reached.replace("|", "\\|")


def page() -> str:
    """The text of README.md."""
    parts = [HEAD]
    for task, names in TASKS.items():
        parts.append(f"\n## {task}\n\n| script | what it is | what it reached |\n|---|---|---|\n")
        for name in names.split():
            file, what, reached = told(name)
            place = f"{name.rpartition('/')[0]}/{file}"
            parts.append(f"| [{place}]({place}) | {what} | {reached and f'`{reached}`'} |\n")
    return "".join(parts)


if __name__ == "__main__":
    with replacing(FOLDER / "README.md") as made:
        made.write_text(page(), encoding="utf-8")
