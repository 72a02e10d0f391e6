"""Small models of the shapes that networks have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def seeded(model: nn.Module) -> nn.Module:
    """With statistics of batch normalisations that are not those of a new model."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            size = module.num_features
            module.running_mean.copy_(torch.randn(size, generator=generator) / 4)
            module.running_var.copy_(torch.rand(size, generator=generator) + 0.5)
            with torch.no_grad():
                module.weight.copy_(torch.rand(size, generator=generator) + 0.5)
                module.bias.copy_(torch.randn(size, generator=generator) / 4)
    return model.eval()


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = None
        if stride > 1 or channels != filters:
            conv = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y)


class ResNet(nn.Module):
    """As ResNet-18, with few channels."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(3):
            filters = width << stage
            blocks += [
                ResidualBlock(channels, filters, 1 if stage == 0 else 2),
                ResidualBlock(filters, filters, 1),
            ]
            channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class InvertedResidual(nn.Module):
    """The block of MobileNet-V2."""

    def __init__(self, channels: int = 8, expansion: int = 3) -> None:
        super().__init__()
        inner = channels * expansion
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class SqueezeExcitation(nn.Module):
    """The block of EfficientNet, with the activation of MobileNet-V3."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return F.hardswish(x * scale.sigmoid())


class UNet(nn.Module):
    """Two levels, up by a transposed convolution and by interpolation."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bottom = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.norm = nn.BatchNorm2d(2 * width)
        self.fuse2 = nn.Conv2d(4 * width, width, 3, padding=1)
        self.fuse1 = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        y = F.relu(self.bottom(F.max_pool2d(b, 2)))
        y = F.relu(self.norm(self.up2(y)))
        y = F.relu(self.fuse2(torch.cat([y, b], 1)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.fuse1(torch.cat([y, a], 1)))


class Attention(nn.Module):
    """A layer of a decoder, written out: rotations of positions, causal attention, a gated
    perceptron."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down = nn.Linear(24, width, bias=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        place = torch.arange(x.shape[-2], device=x.device).float()
        angle = place[:, None] * 10 ** -torch.arange(half).float()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Recurrent(nn.Module):
    """Words, an LSTM in both directions, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.lstm = nn.LSTM(5, 6, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 4)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, (last, _) = self.lstm(self.words(words))
        return self.gru(states)[0], last
