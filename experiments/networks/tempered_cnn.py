"""A small convolutional network of four blocks, for images.

Papernot, Thakurta, Song, Chien and Erlingsson 2021, "Tempered Sigmoid Activations for Deep Learning with Differential
Privacy", with tanh: 16 filters of 8 x 8 and 32 of 4 x 4, each with stride 2 and followed by a maximum over 2 x 2 with
stride 1; 32 units; softmax. With `algorithm: hybrid` and `shared_blocks: 1` the filters below learn by back-propagation
from those above, which get a projected error.
"""

from torch import nn

from pipeline import ConfigError, network, setting


@network("tempered_cnn", version=1, label="CNN with tempered sigmoids",
         settings={"tempered_kernel": setting(8, "side of the first filters; the second have half", low=2),
                   "tempered_stride": setting(2, "stride of both convolutions", low=1)})
def build(trial, shape, n_classes):
    kernel, stride = trial.tempered_kernel, trial.tempered_stride
    if len(shape) != 3:
        raise ConfigError("features", "must be images with network 'tempered_cnn'", f"records of shape {list(shape)}")

    def after(side):
        first = (side + 2 * (kernel // 2 - 1) - kernel) // stride
        return (first - kernel // 2) // stride
    height, width = map(after, shape[1:])
    if min(height, width) < 1:
        raise ConfigError("tempered_kernel", f"must leave a pixel of images of {shape[1]} x {shape[2]}",
                          f"{kernel} with tempered_stride {stride}", "smaller ones do")
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 16, kernel, stride, padding=kernel // 2 - 1), nn.Tanh(), nn.MaxPool2d(2, 1)),
        nn.Sequential(nn.Conv2d(16, 32, kernel // 2, stride), nn.Tanh(), nn.MaxPool2d(2, 1)),
        nn.Sequential(nn.Flatten(), nn.Linear(32 * height * width, 32), nn.Tanh()),
        nn.Linear(32, n_classes))
