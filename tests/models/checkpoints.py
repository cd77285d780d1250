# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints of every family, as transformers saves them."""

import pytest

from tests.models import texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
# with small weights what is tied repeats its last token
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.4}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
SLIDING = {"use_sliding_window": True, "sliding_window": 4}
BOTH = ["sliding_attention", "full_attention"]


def rope(theta=10000.0, **more):
    return {"rope_parameters": {"rope_theta": theta, **more}}


# name: (model_type, what differs from SIZES)
DECODERS = {
    "gpt2": ("gpt2", {}),
    "gpt2-relu": ("gpt2", {"activation_function": "relu", "n_inner": 40}),
    "llama": ("llama", {}),
    "llama-heads": ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama-3": ("llama", rope(5e5, original_max_position_embeddings=16, **LLAMA3)),
    "llama-linear": ("llama", rope(rope_type="linear", factor=4.0)),
    "llama-dynamic": ("llama", rope(rope_type="dynamic", factor=2.0)),
    "llama-yarn": (
        "llama",
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "mistral": ("mistral", {"sliding_window": 4}),
    "mistral-whole": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-sliding": ("qwen2", {**SLIDING, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 20}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 4, "layer_types": BOTH}),
    "phi3": ("phi3", {}),
    "phi3-long": (
        "phi3",
        {"original_max_position_embeddings": 8, **rope(rope_type="longrope", **LONG)},
    ),
    "phi4": ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 4}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "olmo": ("olmo", {"clip_qkv": 0.05}),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 4,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "original_max_position_embeddings": 16,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen2_moe": ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 40}),
    "qwen2_moe-mixed": (
        "qwen2_moe",
        {
            **MOE,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "shared_expert_intermediate_size": 8,
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**MOE, "head_dim": 16}),
}


READS = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
DISTILLED = {
    "vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
ENCODERS = {  # name: (config, model, what differs, our head)
    "bert": ("BertConfig", "BertModel", {}, ""),
    "bert-summary": ("BertConfig", "BertModel", {"hidden_act": "gelu_new"}, "summary"),
    "bert-masked": ("BertConfig", "BertForMaskedLM", {}, "masked"),
    "bert-classes": ("BertConfig", "BertForSequenceClassification", {"num_labels": 3}, "classes"),
    "roberta": ("RobertaConfig", "RobertaModel", {"pad_token_id": 1}, ""),
    "roberta-masked": ("RobertaConfig", "RobertaForMaskedLM", {"pad_token_id": 1}, "masked"),
    "roberta-classes": (
        "RobertaConfig", "RobertaForSequenceClassification", {"pad_token_id": 1}, "classes",
    ),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {}, ""),
    "distilbert-masked": ("DistilBertConfig", "DistilBertForMaskedLM", {}, "masked"),
    "distilbert-classes": (
        "DistilBertConfig", "DistilBertForSequenceClassification", {}, "classes",
    ),
}  # fmt: skip


T5 = {
    "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
T5S = {
    "t5": {"num_decoder_layers": 1},
    "t5-gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5-near": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10},
}


def t5(name, **more):
    """The model of transformers that one of T5S names."""
    torch.manual_seed(0)
    config = transformers.T5Config(**{**T5, **T5S[name], **more})
    return drawn(transformers.T5ForConditionalGeneration(config))


WHISPER = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40, "num_mel_bins": 8, "max_source_positions": 10,
    "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3,
}  # fmt: skip
SIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIDE |= {"intermediate_size": 48}
SEEN = {**SIDE, "image_size": 32, "patch_size": 8}
SAID = {**SIDE, "vocab_size": 60, "max_position_embeddings": 16}
PICTURES = {  # name: (config, model, sizes)
    "vit": ("ViTConfig", "ViTForImageClassification", {**SEEN, "num_labels": 5}),
    "vit-summary": ("ViTConfig", "ViTModel", {**SEEN, "num_channels": 1}),
    "clip": (
        "CLIPConfig", "CLIPModel",
        {"vision_config": SEEN, "text_config": {**SAID, "eos_token_id": 59}, "projection_dim": 24},
    ),
    "clip-old": (
        "CLIPConfig", "CLIPModel",
        {"vision_config": SEEN, "text_config": {**SAID, "eos_token_id": 2}},
    ),
    "siglip": ("SiglipConfig", "SiglipModel", {"vision_config": SEEN, "text_config": SAID}),
}  # fmt: skip


def whisper(**more):
    """A Whisper of transformers."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**WHISPER, **more})
    return drawn(transformers.WhisperForConditionalGeneration(config))


def pictures(name):
    """The model of transformers that one of PICTURES names."""
    config, kind, sizes = PICTURES[name]
    torch.manual_seed(0)
    return drawn(getattr(transformers, kind)(getattr(transformers, config)(**sizes)))


def drawn(model, seed=0):
    """The model with weights that all count: biases and factors of norms begin at 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
    return model.eval()


def decoder(name, seed=0):
    """The model of transformers that one of DECODERS names."""
    kind, more = DECODERS[name]
    sizes = GPT2 if kind == "gpt2" else SIZES
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **more})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return drawn(model, seed)


def encoder(name):
    """The model of transformers that one of ENCODERS names."""
    config, kind, more, _ = ENCODERS[name]
    sizes = DISTILLED if name.startswith("distil") else READS
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{**sizes, **more})
    return drawn(getattr(transformers, kind)(made))


def tokenizer(**more):
    """That of `texts`, as transformers has it."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=texts.tokenizer(), **special, **more
    )
