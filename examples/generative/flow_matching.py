# SPDX-License-Identifier: Apache-2.0
"""Flow matching: a U-Net learns the velocity from noise to digits, along straight lines.

    python examples/generative/flow_matching.py train

The network of diffusion.py with another target: at the time t between 0 and 1 an image is (1 - t)
noise + t x, and moves by x - noise. Samples follow the velocity, in 20 steps of Heun's method.
Source: Lipman et al., arXiv:2210.02747; Liu et al., arXiv:2209.03003. Expected of
--size tiny --steps 600:

    {"seconds": 66, "FID": 2.74, "precision": 0.69, "recall": 0.91, "recognised": 0.86}
"""

from common import main
from diffusion import Diffusion

from nnl.training.generative import integrate

SCALE = 1000  # of times, as the vectors that stand for them are made for


class FlowMatching(Diffusion):
    """The same network, trained and followed otherwise."""

    def noised(self, images, noise, when, labels):
        t = when[:, None, None, None]
        x = ((1 - t) * noise + t * images).astype(images.dtype)
        return x, (when * SCALE).astype(images.dtype), labels, images - noise

    def denoise(self, predict, noise, steps):
        return integrate(lambda x, t: predict(x, t * SCALE), noise, min(steps, 20))


if __name__ == "__main__":
    main(FlowMatching)
