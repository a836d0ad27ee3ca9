"""Scattering coefficients of images (Bruna and Mallat 2013; in private learning Tramer and Boneh 2021): averages of
moduli of wavelet transforms. An image's coefficients depend on this image alone.

Filters are defined as in kymatio 0.3 (Andreux et al. 2020), and the coefficients agree with kymatio's to 1e-5.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch.fft import fft2, ifft2

from pipeline.trials.features import padded_size

PI = 3.1415  # in the norm of kymatio's filters; with more digits each filter would be smaller, by the share 3e-5
WIDTH, FREQUENCY = 0.8, 0.75 * math.pi  # of the finest wavelet: sigma, and xi
PERIODS = range(-2, 3)  # copies of a filter that are added up, so that it is periodic
CHUNK_IMAGES = {"cpu": 24, "cuda": 1024}  # at a time; on a CPU their transforms stay in its cache


def scattering(images: torch.Tensor, scales: int = 2, angles: int = 8) -> torch.Tensor:  # [n, size, size]; J, L
    """Return scattering coefficients of images, up to the second order.

    Let z be the image, reflected at its borders, psi_{j,t} a wavelet of scale 2^j and angle t, and phi an average over
    2^J pixels. The coefficients are z * phi, |z * psi_{j,t}| * phi, and ||z * psi_{j,t}| * psi_{k,u}| * phi for k > j,
    each at every 2^J-th pixel: [n, 1 + J L + L^2 J (J - 1)/2, size', size'], size' = padded size/2^J - 2. Orders come
    one after the other, each by scale, then angle (the second order by the scale and angle of the second wavelet).
    """
    return torch.cat([_coefficients(chunk, scales, angles) for chunk in images.split(CHUNK_IMAGES[images.device.type])])


def _coefficients(images: torch.Tensor, scales: int, angles: int) -> torch.Tensor:
    """Return the coefficients of one chunk of images; `scattering` describes them and their order."""
    size = images.shape[-1]
    padded = padded_size(size, scales)
    before = (padded - size) // 2
    wavelets, averages = _filters(padded, scales, angles, images.device)
    padding = (before, padded - size - before) * 2
    image = torch.nn.functional.pad(images.unsqueeze(1), padding, mode="reflect")
    first, second = [], []
    for j in range(scales):
        u = _modulus(fft2(image), wavelets[j][0], 2**j)  # [n, L, s, s], s = padded/2^j
        first.append(_average(u, averages[j]))
        if j + 1 < scales:
            spectrum, by_scale = fft2(u).unsqueeze(2), []
            for k in range(j + 1, scales):
                v = _modulus(spectrum, wavelets[k][j], 2 ** (k - j))  # [n, L, L, s', s']
                by_scale.append(_average(v, averages[k]))
            second.append(torch.stack(by_scale, dim=2).flatten(1, 3))  # by angle, then by the second scale and angle
    return torch.cat([_average(image, averages[0]), *first, *second], dim=1)


def _modulus(spectrum: torch.Tensor,  # of the image [..., size, size]
             wavelets: torch.Tensor,  # spectra [L, size, size]
             step: int) -> torch.Tensor:
    """Return the moduli of wavelet transforms at every step-th pixel.

    Taking every step-th pixel averages step^2 blocks of the spectrum. This is done before the inverse transform, which
    is then smaller.
    """
    size = spectrum.shape[-1] // step
    blocks = [slice(k * size, (k + 1) * size) for k in range(step)]
    folded = sum(spectrum[..., rows, columns] * wavelets[..., rows, columns] for rows in blocks for columns in blocks)
    return ifft2(folded).abs().div_(step**2)


def _average(images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return weighted averages [..., q, q] of images [..., s, s]; weights [s^2, q^2] have a column for each average."""
    q = math.isqrt(weights.shape[1])
    return (images.flatten(-2) @ weights).unflatten(-1, (q, q))


@lru_cache(maxsize=8)
def _filters(size: int, scales: int, angles: int,
             device: torch.device) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Return the wavelets and the averages of `scattering` for images of this padded size.

    Wavelets by scale j, then by resolution r = 0..j (every 2^r-th pixel): real spectra [L, size/2^r, size/2^r].
    Averages by r: the weights [(size/2^r)^2, q^2] of averages at every 2^J-th pixel, without the border.
    """
    wavelets = []
    for j in range(scales):
        rotated = []
        for t in range(angles):
            theta = (int(angles - angles / 2 - 1) - t) * math.pi / angles  # kymatio's order of angles
            rotated.append(_morlet(size, WIDTH * 2**j, theta, FREQUENCY / 2**j, 4 / angles))
        spectra = np.fft.fft2(np.stack(rotated)).real
        wavelets.append([torch.from_numpy(_at_resolution(spectra, r)).float().to(device) for r in range(j + 1)])
    low_pass = np.fft.fft2(_gabor(size, WIDTH * 2 ** (scales - 1), 0.0, 0.0, 1.0)).real
    averages = []
    for r in range(scales):
        kernel, step = np.fft.ifft2(_at_resolution(low_pass, r)).real, 2 ** (scales - r)
        places = np.arange(step, len(kernel) - step, step)
        distances = (places[:, None] - np.arange(len(kernel))) % len(kernel)  # [q, s], periodic
        weights = kernel[distances[:, None, :, None], distances[None, :, None, :]]  # [q, q, s, s]
        averages.append(torch.from_numpy(weights.reshape(len(places) ** 2, -1).T.copy()).float().to(device))
    return wavelets, averages


def _gabor(size: int, sigma: float,  # pixels: width of the envelope along the wave; across it is sigma/slant
           theta: float, xi: float,  # radians: angle; radians per pixel: frequency, 0 gives the envelope
           slant: float) -> np.ndarray:
    """Return a complex wave under a Gaussian envelope, [size, size], periodic."""
    cos, sin = math.cos(theta), math.sin(theta)
    x = np.arange(PERIODS.start * size, PERIODS.stop * size, dtype=float)
    xx, yy = np.meshgrid(x, x, indexing="ij")
    square = ((cos**2 + slant**2 * sin**2) * xx**2 + 2 * cos * sin * (1 - slant**2) * xx * yy
              + (sin**2 + slant**2 * cos**2) * yy**2)
    values = np.exp(-square / (2 * sigma**2) + 1j * xi * (xx * cos + yy * sin))
    periods = values.reshape(len(PERIODS), size, len(PERIODS), size).sum(axis=(0, 2))
    return periods / (2 * PI * sigma**2 / slant)


def _morlet(size: int, sigma: float, theta: float, xi: float, slant: float) -> np.ndarray:
    """Return a Morlet wavelet: a Gabor wave, minus the multiple of its envelope that makes its mean 0."""
    wave, envelope = (_gabor(size, sigma, theta, frequency, slant) for frequency in (xi, 0.0))
    return wave - wave.sum() / envelope.sum() * envelope


def _at_resolution(spectra: np.ndarray, resolution: int) -> np.ndarray:
    """Return spectra [..., n/2^r, n/2^r] of filters [..., n, n] at every 2^r-th pixel, without aliased frequencies."""
    if not resolution:
        return spectra
    size, step = spectra.shape[-1], 2**resolution
    mask = np.ones(size)
    mask[size // (2 * step):size // (2 * step) + int(size * (1 - 1 / step))] = 0  # high frequencies
    # Taking every step-th pixel adds up step^2 blocks of the spectrum.
    blocks = (spectra * mask[:, None] * mask).reshape(*spectra.shape[:-2], step, size // step, step, size // step)
    return blocks.sum(axis=(-4, -2))
