"""Tiny networks of the families that people use, written in plain torch."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

WIDTH = 32
VOCABULARY = 24
LENGTH = 6


class ConvWithBatchNorm(nn.Module):
    """Convolutions with batch norm, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.hidden = nn.Linear(24, WIDTH)
        self.fc = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.hidden(self.second(self.first(x)).mean((2, 3))).relu()))


class BatchStatistics(nn.Module):
    """Convolutions with batch norm that has no running statistics: rows of a batch depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24, track_running_stats=False)
        self.hidden = nn.Linear(24, WIDTH)
        self.fc = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.hidden(self.norm(self.conv(x)).relu().mean((2, 3))).relu()))


class InvertedResidual(nn.Module):
    """MobileNet's block: expand, depthwise convolution, project."""

    def __init__(self, width: int, expanded: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, expanded, 1, bias=False),
            nn.BatchNorm2d(expanded),
            nn.ReLU6(),
            nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded, bias=False),
            nn.BatchNorm2d(expanded),
            nn.ReLU6(),
            nn.Conv2d(expanded, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.body(x))


class DepthwiseConv(nn.Module):
    """A stem and two blocks as MobileNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(InvertedResidual(16, 48), InvertedResidual(16, 48))
        self.classifier = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.blocks(self.stem(x)).mean((2, 3))))


class ConvNextBlock(nn.Module):
    """A wide depthwise convolution, layer norm over channels, two linear layers and a scale per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(nn.functional.gelu(self.up(y)))
        return x + cast(Tensor, y.permute(0, 3, 1, 2))


class ConvNextLike(nn.Module):
    """Patches and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 2, stride=2)
        self.blocks = nn.Sequential(ConvNextBlock(24), ConvNextBlock(24))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(self.blocks(self.patches(x)).mean((2, 3)))))


class Residual(nn.Module):
    """ResNet's basic block, with a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return cast(Tensor, self.relu(y + self.shortcut(x)))


class ResNet(nn.Module):
    """A stem and two residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(Residual(16, 16, 1), Residual(16, 24, 2))
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.layers(self.stem(x)).mean((2, 3))))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, an encoder of torch, and a head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 5, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.positions
        return cast(Tensor, self.head(self.encoder(tokens)[:, 0]))


class Attention(nn.Module):
    """Self-attention with separate projections and a mask that is added to the scores."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask).softmax(-1)
        return cast(Tensor, self.out((weights @ v).transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Attention and two linear layers, each with a norm before it and a sum after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + cast(Tensor, self.mlp(self.norm2(x)))


class BertLike(nn.Module):
    """An encoder of tokens with inputs by name, and a head on the first token or on every one."""

    def __init__(self, every_token: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.classifier = nn.Linear(WIDTH, 3)
        self.every_token = every_token

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids) + self.positions.weight[: input_ids.shape[1]]
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e4
        x = self.norm(self.block(x, mask))
        return {"logits": self.classifier(x if self.every_token else x[:, 0])}


class GptLike(nn.Module):
    """A decoder of tokens whose output layer is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.words.weight, std=0.1)
        self.output.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        mask = torch.full((length, length), -1e4, device=input_ids.device).triu(1)
        x = self.words(input_ids) + self.positions.weight[:length]
        return cast(Tensor, self.output(self.norm(self.block(x, mask))))


class Lstm(nn.Module):
    """An LSTM over embedded tokens, and a head on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, WIDTH, batch_first=True)
        self.fc = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.lstm(self.words(x))[0][:, -1]))


class UNet(nn.Module):
    """One step down, one up by a transposed convolution, a connection across, and a class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 16, 2, stride=2)
        self.merge = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = self.down(x)
        return cast(Tensor, self.out(self.merge(torch.cat([across, self.up(self.bottom(across))], 1))))


class TwoInputs(nn.Module):
    """A perceptron that takes two inputs by position."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, WIDTH), nn.Linear(6, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.fc = nn.Linear(WIDTH, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.hidden((self.left(left) + self.right(right)).relu()).relu()))
