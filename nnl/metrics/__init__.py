# SPDX-License-Identifier: Apache-2.0
"""Measures of trained networks: functions of numpy arrays, which no framework is needed for.

Classification, detection and segmentation compare predictions with truth; images and videos are
compared with what they should be; generative measures compare two sets in a space of features.
"""

from nnl.metrics.classification import (
    accuracy,
    average_precision,
    calibration_error,
    cohen_kappa,
    confusion_matrix,
    matthews_correlation,
    precision_recall_f1,
    roc_auc,
)
from nnl.metrics.detection import box_iou, coco_average_precision
from nnl.metrics.generative import (
    Moments,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_recall_of_features,
)
from nnl.metrics.images import perceptual_distance, psnr, ssim
from nnl.metrics.segmentation import panoptic_quality, segmentation_scores
from nnl.metrics.text import (
    bleu,
    character_error_rate,
    chrf,
    edit_distance,
    perplexity,
    rouge_l,
    rouge_n,
    word_error_rate,
)
from nnl.metrics.video import warp, warping_error

__all__ = [
    "Moments",
    "accuracy",
    "average_precision",
    "bleu",
    "box_iou",
    "calibration_error",
    "character_error_rate",
    "chrf",
    "coco_average_precision",
    "cohen_kappa",
    "confusion_matrix",
    "edit_distance",
    "frechet_distance",
    "inception_score",
    "kernel_distance",
    "matthews_correlation",
    "panoptic_quality",
    "perceptual_distance",
    "perplexity",
    "precision_recall_f1",
    "precision_recall_of_features",
    "psnr",
    "roc_auc",
    "rouge_l",
    "rouge_n",
    "segmentation_scores",
    "ssim",
    "warp",
    "warping_error",
    "word_error_rate",
]
