"""Small networks of many architectures, with random weights: Hugging Face's, and some written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from examples.detector import Convolution, Detector

Case = tuple[nn.Module, dict[str, Tensor]]
"""A network, and what it is called with."""

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
TEXT: dict[str, Any] = {**SMALL, "vocab_size": 60, "max_position_embeddings": 16}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
WIDTHS: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [2, 1, 1, 1]}


def text() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(60, (2, 7))}


def image(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def rt_detr() -> Case:
    backbone = hf.RTDetrResNetConfig(**WIDTHS, out_features=["stage2", "stage3", "stage4"])
    config = hf.RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[32, 32, 64], num_denoising=0, num_labels=5, **DETECTOR
    )
    return hf.RTDetrForObjectDetection(config), image(64)


def d_fine() -> Case:
    backbone = hf.HGNetV2Config(
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 16, 16],
        stage_mid_channels=[8, 8, 8, 8],
        stage_out_channels=[16, 16, 16, 32],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        hidden_sizes=[16, 16, 16, 32],
        depths=[1, 1, 1, 1],
        embedding_size=8,
        out_features=["stage2", "stage3", "stage4"],
    )
    config = hf.DFineConfig(
        backbone_config=backbone, encoder_in_channels=[16, 16, 32], num_denoising=0, num_labels=5, **DETECTOR
    )
    return hf.DFineForObjectDetection(config), image(64)


DETECTOR: dict[str, Any] = {
    "encoder_hidden_dim": 32,
    "d_model": 32,
    "feat_strides": [8, 16, 32],
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_in_channels": [32, 32, 32],
    "num_queries": 8,
    "decoder_layers": 2,
}


def whisper() -> Case:
    config = hf.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        vocab_size=60,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": torch.randint(60, (2, 7))}
    return hf.WhisperForConditionalGeneration(config), inputs


def t5() -> Case:
    config = hf.T5Config(
        d_model=32, d_kv=8, d_ff=96, num_layers=2, num_heads=4, vocab_size=60, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(config), {**text(), "decoder_input_ids": torch.randint(60, (2, 7))}


def clip() -> Case:
    parts = {"text_config": {**TEXT, "projection_dim": 8, "eos_token_id": 2, "bos_token_id": 1}}
    vision = {**SMALL, "image_size": 16, "patch_size": 8, "projection_dim": 8}
    return hf.CLIPModel(hf.CLIPConfig(**parts, vision_config=vision, projection_dim=8)), {**text(), **image(16)}


def wav2vec2() -> Case:
    config = hf.Wav2Vec2Config(
        **SMALL,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        vocab_size=12,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 400)}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner, self.middle = (
            Convolution(3, 16),
            Convolution(16, 32),
            Convolution(32, 64),
        )
        self.up, self.join = nn.ConvTranspose2d(64, 32, 2, 2), Convolution(64, 32)
        self.last_up, self.last_join = nn.ConvTranspose2d(32, 16, 2, 2), Convolution(32, 16)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        outer = self.outer(x)
        inner = self.inner(self.pool(outer))
        joined = self.join(torch.cat([self.up(self.middle(self.pool(inner))), inner], 1))
        return self.head(self.last_join(torch.cat([self.last_up(joined), outer], 1)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(60, 16), nn.LSTM(16, 32, 2, batch_first=True)
        self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.hidden(self.lstm(self.words(input_ids))[0]).relu())  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block with one layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.before(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.project(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))  # type: ignore[no-any-return]


class OwnViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.randn(1, 64, 32))
        self.blocks, self.head = nn.Sequential(Block(32, 4), Block(32, 4)), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(features).mean(1))  # type: ignore[no-any-return]


class Hybrid(nn.Module):
    """Convolutions, and one encoder layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1))
        self.layer, self.head = nn.TransformerEncoderLayer(32, 4, 96, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.stem(x).flatten(2).transpose(1, 2)).mean(1))  # type: ignore[no-any-return]


def _images(**options: Any) -> dict[str, Any]:
    return {**SMALL, "image_size": 16, "patch_size": 8, **options}


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    "ResNet, bottlenecks": lambda: (hf.ResNetForImageClassification(hf.ResNetConfig(**WIDTHS)), image()),
    "ResNet, basic": lambda: (
        hf.ResNetForImageClassification(hf.ResNetConfig(**WIDTHS, layer_type="basic")),
        image(),
    ),
    "RegNet": lambda: (hf.RegNetForImageClassification(hf.RegNetConfig(**WIDTHS, groups_width=8)), image()),
    "EfficientNet": lambda: (
        hf.EfficientNetForImageClassification(
            hf.EfficientNetConfig(image_size=32, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320)
        ),
        image(),
    ),
    "MobileNetV1": lambda: (
        hf.MobileNetV1ForImageClassification(hf.MobileNetV1Config(depth_multiplier=0.25, image_size=32)),
        image(),
    ),
    "MobileNetV2": lambda: (
        hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(depth_multiplier=0.35, image_size=32)),
        image(),
    ),
    "ConvNeXt": lambda: (
        hf.ConvNextForImageClassification(hf.ConvNextConfig(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])),
        image(64),
    ),
    "ConvNeXtV2": lambda: (
        hf.ConvNextV2ForImageClassification(hf.ConvNextV2Config(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])),
        image(64),
    ),
    "U-Net": lambda: (UNet(), {"x": torch.randn(2, 3, 32, 32)}),
    "YOLO with C2f": lambda: (Detector(), {"x": torch.randn(2, 1, 64, 64)}),
    "RT-DETR": rt_detr,
    "D-FINE": d_fine,
    "ViT": lambda: (hf.ViTForImageClassification(hf.ViTConfig(**_images())), image(16)),
    "a ViT of its own": lambda: (OwnViT(), {"x": torch.randn(2, 3, 32, 32)}),
    "DeiT": lambda: (hf.DeiTForImageClassification(hf.DeiTConfig(**_images())), image(16)),
    "BEiT": lambda: (
        hf.BeitForImageClassification(hf.BeitConfig(**_images(use_relative_position_bias=True))),
        image(16),
    ),
    "DINOv2": lambda: (hf.Dinov2ForImageClassification(hf.Dinov2Config(**_images())), image(16)),
    "Swin": lambda: (
        hf.SwinForImageClassification(
            hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
        ),
        image(),
    ),
    "SegFormer": lambda: (
        hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(
                depths=[1, 1, 1, 1],
                hidden_sizes=[8, 16, 32, 32],
                decoder_hidden_size=32,
                num_attention_heads=[1, 2, 4, 4],
            )
        ),
        image(64),
    ),
    "DPT": lambda: (
        hf.DPTForDepthEstimation(
            hf.DPTConfig(
                **{**_images(image_size=32), "num_hidden_layers": 4},
                backbone_out_indices=[0, 1, 2, 3],
                neck_hidden_sizes=[8, 8, 16, 16],
                fusion_hidden_size=16,
                is_hybrid=False,
            )
        ),
        image(32),
    ),
    "YOLOS": lambda: (
        hf.YolosForObjectDetection(hf.YolosConfig(**_images(image_size=[32, 32]), num_detection_tokens=4)),
        image(32),
    ),
    "CLIP": clip,
    "convolutions and an encoder layer": lambda: (Hybrid(), {"x": torch.randn(2, 3, 32, 32)}),
    "BERT": lambda: (hf.BertForSequenceClassification(hf.BertConfig(**TEXT)), text()),
    "RoBERTa": lambda: (hf.RobertaForSequenceClassification(hf.RobertaConfig(**TEXT)), text()),
    "DistilBERT": lambda: (
        hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=96, vocab_size=60, max_position_embeddings=16)
        ),
        text(),
    ),
    "GPT-2": lambda: (
        hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0)
        ),
        text(),
    ),
    "Llama": lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)), text()),
    "Qwen2": lambda: (hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)), text()),
    "Qwen3": lambda: (hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8)), text()),
    "Mixtral": lambda: (hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)), text()),
    "Mamba": lambda: (
        hf.MambaForCausalLM(hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=60, state_size=4)),
        text(),
    ),
    "T5": t5,
    "Whisper": whisper,
    "wav2vec2": wav2vec2,
    "LSTM": lambda: (Recurrent(), text()),
}
