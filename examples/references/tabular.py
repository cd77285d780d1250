# SPDX-License-Identifier: Apache-2.0
"""Tables: whether tumours are malignant, from 30 measurements; how sure to be of it.

Breast cancer of scikit-learn, a network of two layers with dropout. Beside: logistic regression.
Expected:

    {"ROC AUC": 0.9969, "ROC AUC of logistic regression": 0.998, "calibration error": 0.0151}
"""

import numpy as np
from common import answers, fit, main, some

import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import calibration_error, roc_auc


def network(x, drop=0.0):
    h = F.relu(PF.affine(x, 32, name="first"))
    h = F.dropout(h, drop) if drop else h
    return PF.affine(h, 1, name="last")


def loss_of(x, t):
    return F.mean(F.sigmoid_cross_entropy(network(x, 0.3), F.reshape(t, (t.shape[0], 1))))


def run(steps=400):
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    x, t = load_breast_cancer(return_X_y=True)
    held_out = np.arange(len(x)) % 4 == 3
    mean, spread = x[~held_out].mean(0), x[~held_out].std(0)
    x = ((x - mean) / spread).astype(np.float32)
    fit(loss_of, some(64, x[~held_out], t[~held_out]), steps)
    sure = 1 / (1 + np.exp(-answers(network, x[held_out])[:, 0].astype(float)))
    other = LogisticRegression(max_iter=500).fit(x[~held_out], t[~held_out])
    truth = t[held_out]
    return {
        "ROC AUC": roc_auc(truth, sure),
        "ROC AUC of logistic regression": roc_auc(truth, other.decision_function(x[held_out])),
        "calibration error": calibration_error(truth, np.stack([1 - sure, sure], 1), 10),
    }


if __name__ == "__main__":
    main(run)
