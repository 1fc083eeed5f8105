"""Small models of transformers by their public configurations, with a vocabulary of bytes."""

from __future__ import annotations

VOCABULARY, TOKENS = 256, 16

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
NARROW = {**GROUPED, "head_dim": 8}
CERTAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PATCHES = {key: SIZES[key] for key in list(SIZES)[1:5]} | {"image_size": 16, "patch_size": 8}

# The class of each model, and its configuration.
TEXT = {
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "use_cache": False,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", SIZES),
    "opt": (
        "OPTForCausalLM",
        {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0, "pad_token_id": 1},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "llama_stretched": (
        "LlamaForCausalLM",
        {
            **GROUPED,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        },
    ),
    "mistral": ("MistralForCausalLM", {**GROUPED, "pad_token_id": 65}),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", NARROW),
    "gemma": ("GemmaForCausalLM", NARROW),
    "phi": ("PhiForCausalLM", {**SIZES, "num_key_value_heads": 4, "resid_pdrop": 0.0}),
    "bert": ("BertForMaskedLM", {**SIZES, **CERTAIN, "pad_token_id": 0}),
}
IMAGES = {
    "vit": ("ViTForImageClassification", {**PATCHES, **CERTAIN, "num_labels": 10}),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 10},
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "num_labels": 10},
    ),
}

# Models of images of the tests' own.
OWN = ("vgg", "densenet", "mobilenet", "clip", "efficientnet")


def built(name):
    """A model for evaluation, in which everything matters: weights are not small, gains and biases are
    none of one and zero."""
    import torch
    import transformers

    torch.manual_seed(5)
    if name in OWN:
        import image_models

        model = image_models.MODELS[name]().eval()
    else:
        kind, sizes = (TEXT | IMAGES)[name]
        kind = getattr(transformers, kind)
        model = kind(kind.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(6.0)
    return model
