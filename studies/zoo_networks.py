"""Tiny networks of PyTorch's own layers, of torchvision and of timm, for `studies.zoo`."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from studies.zoo_transformers import Example

__all__ = ["NETWORKS", "TIMM", "TORCHVISION", "library_module"]


def square(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean square of the outputs."""
    return model(batch).square().mean()


class Last(nn.Module):
    """A recurrent network with a head that reads its outputs."""

    def __init__(self, core: nn.RNNBase, width: int):
        super().__init__()
        self.core, self.head = core, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[0])


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` with a head that reads it."""

    def __init__(self, **options: Any):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True, **options), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        memory = x[..., : self.attention.kdim]
        return self.head(self.attention(x, memory, memory, need_weights=False)[0])


class Translation(nn.Module):
    """`nn.Transformer` on one sequence as source and target."""

    def __init__(self, **options: Any):
        super().__init__()
        self.core = nn.Transformer(8, 2, 1, 1, 10, batch_first=True, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x, x.flip(1)))


class Autoencoder(nn.Module):
    """A variational autoencoder with convolutions; it draws from its latent distribution."""

    def __init__(self):
        super().__init__()
        down = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())
        self.encoder = nn.Sequential(down(2, 4), down(4, 5), nn.Flatten())
        self.mean, self.deviation = nn.Linear(20, 3), nn.Linear(20, 3)
        self.widen = nn.Linear(3, 20)
        self.decoder = nn.Sequential(
            nn.ReLU(), nn.Unflatten(1, (5, 2, 2)), nn.ConvTranspose2d(5, 4, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        return self.decoder(self.widen(self.mean(h) + torch.randn(len(x), 3).to(h) * (self.deviation(h) / 2).exp()))


class UNet(nn.Module):
    """Two resolutions with a concatenation, with or without batch norms."""

    def __init__(self, *, norms: bool):
        super().__init__()
        norm = nn.BatchNorm2d if norms else lambda width: nn.Identity()
        layer = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), norm(b), nn.ReLU())
        self.down, self.middle, self.up = layer(2, 4), layer(4, 5), nn.ConvTranspose2d(5, 3, 2, 2)
        self.joined, self.head = layer(7, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        up = self.up(self.middle(F.max_pool2d(fine, 2)))
        return self.head(self.joined(torch.cat([fine, up], 1)))


class Dense(nn.Module):
    """A block in which every convolution reads all features before it, as in DenseNet."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (4, 7))
        self.layers = nn.ModuleList(nn.Conv2d(width, 3, 3, padding=1) for width in (4, 7))
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.head(x.mean((2, 3)))


class Joined(nn.Module):
    """Two branches of different widths, concatenated, and a skip connection around both."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.first = nn.Linear(5, 4), nn.Linear(5, 6), nn.Linear(10, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.first(torch.cat([F.relu(self.one(x)), self.two(x)], -1)))


def mlp(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), activation(), nn.Linear(6, 6), activation(), nn.Linear(6, 3))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 8),
        nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def weight_normed() -> nn.Module:
    norm = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(5, 6)), nn.ReLU(), norm(nn.Linear(6, 3)))


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 10, batch_first=True, **options)
    return nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 3))


def on(*shape: int) -> Callable[[Callable[[], nn.Module]], Callable[[], Example]]:
    """Return a function that adds random data of this shape to a builder of models."""
    return lambda builder: lambda: Example(builder(), torch.randn(shape), square)


vectors, sequence, images = on(7, 5), on(3, 5, 8), on(4, 2, 8, 8)
NETWORKS: dict[str, Callable[[], Example]] = {
    "ReLU network": vectors(lambda: mlp(nn.ReLU)),
    "tanh network": vectors(lambda: mlp(nn.Tanh)),
    "ReLU6 network": vectors(lambda: mlp(nn.ReLU6)),
    "linear network": vectors(lambda: mlp(nn.Identity)),
    "PReLU network with dropout": vectors(lambda: mlp(lambda: nn.Sequential(nn.PReLU(), nn.Dropout(0.3)))),
    "weight norm": vectors(weight_normed),
    "concatenation with a skip": vectors(Joined),
    "LSTM": sequence(lambda: Last(nn.LSTM(8, 6, batch_first=True), 6)),
    "LSTM with a projection": sequence(lambda: Last(nn.LSTM(8, 6, proj_size=4, batch_first=True), 4)),
    "GRU": sequence(lambda: Last(nn.GRU(8, 6, batch_first=True), 6)),
    "RNN, relu, two layers": sequence(lambda: Last(nn.RNN(8, 6, 2, "relu", batch_first=True), 6)),
    "RNN, relu, both directions": sequence(
        lambda: Last(nn.RNN(8, 4, 1, "relu", batch_first=True, bidirectional=True), 8)
    ),
    "nn.MultiheadAttention": sequence(SelfAttention),
    "nn.MultiheadAttention, kdim": sequence(lambda: SelfAttention(kdim=6, vdim=6, bias=False)),
    "nn.TransformerEncoder": sequence(encoder),
    "nn.TransformerEncoder, pre-norm": sequence(lambda: encoder(norm_first=True)),
    "nn.Transformer": sequence(Translation),
    "nn.Transformer, pre-norm": sequence(lambda: Translation(norm_first=True)),
    "LeNet": images(lenet),
    "VAE": images(Autoencoder),
    "U-Net": images(lambda: UNet(norms=False)),
    "U-Net with batch norms": images(lambda: UNet(norms=True)),
    "DenseNet block": images(Dense),
}  # fmt: skip


def library_module(name: str) -> ModuleType:
    """Import a module of torchvision or timm, also where the compiled operators of torchvision cannot be loaded.

    There is no build of torchvision for a PyTorch without CUDA of this version. Its models need none of the compiled
    operators; two of them are declared, because torchvision registers their shapes on import.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for module in [module for module in sys.modules if module.split(".")[0] in ("torchvision", "timm")]:
        del sys.modules[module]
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(declared)
    return importlib.import_module(name)


_KEPT: list[torch.library.Library] = []
"""A library whose operators are declared as long as it lives."""

Maker = Callable[[], nn.Module]


def _efficientnet() -> nn.Module:
    m = library_module("torchvision.models.efficientnet")
    settings = [m.MBConvConfig(1, 3, 1, 6, 6, 2), m.MBConvConfig(2, 3, 2, 6, 8, 1)]
    return m.EfficientNet(settings, dropout=0.2, stochastic_depth_prob=0.4, num_classes=3, last_channel=16)


def _mobilenet_v3() -> nn.Module:
    m = library_module("torchvision.models.mobilenetv3")
    rows = [(8, 3, 8, 8, True, "RE", 1, 1, 1.0), (8, 3, 16, 8, False, "HS", 1, 1, 1.0)]
    return m.MobileNetV3([m.InvertedResidualConfig(*row) for row in rows], last_channel=12, num_classes=3)


def _mobilenet_v2() -> nn.Module:
    m = library_module("torchvision.models")
    model = m.MobileNetV2(num_classes=3, inverted_residual_setting=[[1, 8, 1, 1], [2, 8, 2, 1]], width_mult=0.25)
    model.features, model.classifier[1] = model.features[:-1], nn.Linear(8, 3)  # without the last 1,280 channels
    return model


def _regnet() -> nn.Module:
    m = library_module("torchvision.models.regnet")
    blocks = m.BlockParams([1, 1], [8, 12], [4, 4], [1.0, 1.0], [1, 2], 0.25)
    return m.RegNet(blocks, num_classes=3, stem_width=6)


def _convnext() -> nn.Module:
    m = library_module("torchvision.models.convnext")
    blocks = [m.CNBlockConfig(6, 8, 1), m.CNBlockConfig(8, None, 1)]
    return m.ConvNeXt(blocks, stochastic_depth_prob=0.3, layer_scale=0.1, num_classes=3)


def _swin() -> nn.Module:
    m = library_module("torchvision.models.swin_transformer")
    return m.SwinTransformer([2, 2], 8, [2, 1], [2, 2], [2, 2], mlp_ratio=1.5, stochastic_depth_prob=0.3, num_classes=3)


def _torchvision(name: str, *args: Any, **options: Any) -> Maker:
    return lambda: getattr(library_module("torchvision.models"), name)(*args, num_classes=3, **options)


def _timm(path: str, **options: Any) -> Maker:
    module, _, name = path.rpartition(".")
    return lambda: getattr(library_module(f"timm.models.{module}"), name)(num_classes=3, **options)


def _timm_resnet(block: str, **options: Any) -> Maker:
    def make() -> nn.Module:
        m = library_module("timm.models.resnet")
        return m.ResNet(getattr(m, block), [1, 1, 1, 1], channels=(4, 4, 6, 6), stem_width=4, num_classes=3, **options)

    return make


SMALL_IMAGE = {"img_size": 8, "patch_size": 4, "embed_dim": 8}
photographs = on(4, 3, 8, 8)
TORCHVISION = {f"torchvision {name}": photographs(maker) for name, maker in {
    "DenseNet": _torchvision("DenseNet", growth_rate=3, block_config=(2, 2), num_init_features=6, bn_size=2),
    "ShuffleNetV2": _torchvision("ShuffleNetV2", [1, 1, 1], [6, 8, 8, 12, 14]),
    "MobileNetV2": _mobilenet_v2, "MobileNetV3": _mobilenet_v3, "EfficientNet": _efficientnet, "RegNet": _regnet,
    "ConvNeXt": _convnext, "Swin": _swin,
    "ViT": _torchvision("VisionTransformer", 8, 4, 1, 2, 8, 12),
}.items()}  # fmt: skip
TIMM = {f"timm {name}": photographs(maker) for name, maker in {
    "ViT": _timm("vision_transformer.VisionTransformer", depth=1, num_heads=2, mlp_ratio=1.5, **SMALL_IMAGE),
    "ViT, LayerScale, QK-norm": _timm(
        "vision_transformer.VisionTransformer", depth=1, num_heads=2, mlp_ratio=1.5, init_values=0.1, qk_norm=True,
        drop_path_rate=0.3, **SMALL_IMAGE,
    ),
    "EVA": _timm(
        "eva.Eva", depth=1, num_heads=2, mlp_ratio=1.5, swiglu_mlp=True, use_rot_pos_emb=True, qkv_fused=False,
        **SMALL_IMAGE,
    ),
    "CaiT": _timm("cait.Cait", depth=1, depth_token_only=1, num_heads=2, mlp_ratio=1.5, mlp_ratio_token_only=1.5,
                  init_values=0.1, **SMALL_IMAGE),
    "Mixer": _timm("mlp_mixer.MlpMixer", num_blocks=1, mlp_ratio=(1.5, 1.5), **SMALL_IMAGE),
    "ConvMixer": _timm("convmixer.ConvMixer", dim=6, depth=2, kernel_size=3, patch_size=2),
    "ResNet, basic": _timm_resnet("BasicBlock", drop_path_rate=0.3),
    "ResNet, bottleneck": _timm_resnet("Bottleneck", base_width=32),
    "MetaFormer": _timm("metaformer.MetaFormer", depths=(1, 1), dims=(6, 8)),
}.items()}  # fmt: skip
