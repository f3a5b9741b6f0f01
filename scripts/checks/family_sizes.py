"""Sizes of a tiny model of each family of transformers, for scripts/checks/families.py."""

from typing import Any

VOCABULARY = 64

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
_WINDOW: dict[str, Any] = {"sliding_window": 4, "head_dim": 8}
_BOTH_KINDS: dict[str, Any] = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_LLAMA4: dict[str, Any] = {
    "head_dim": 8,
    "attention_chunk_size": 16,
    "intermediate_size_mlp": 48,
    "layer_types": ["chunked_attention", "full_attention"],
    "num_local_experts": 4,
}
_GEMMA4: dict[str, Any] = _BOTH_KINDS | {
    "global_head_dim": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
_ONE_DENSE: dict[str, Any] = {"mlp_layer_types": ["dense", "sparse"]}
_INDEXER: dict[str, Any] = {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 8}
_LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 32,
}

# A `text_config` has the sizes of a model of text and images; only its text part is run.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama4": {"text_config": _LLAMA4, "vision_config": _VISION},
    "llama4_text": _LLAMA4,
    "mllama_text_model": {"cross_attention_layers": []},
    "arcee": {},
    "apertus": {},
    "qwen2": {},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": _EXPERTS | {"head_dim": 8},
    "mistral": _WINDOW,
    "ministral": _WINDOW,
    "ministral3": _WINDOW,
    "mistral4": _LATENT | _ROUTED,
    "mixtral": _WINDOW | {"num_local_experts": 4},
    "gemma": {"head_dim": 8},
    "gemma2": _BOTH_KINDS,
    "gemma3": {"text_config": _BOTH_KINDS, "vision_config": _VISION},
    "gemma3_text": _BOTH_KINDS,
    "gemma3n_text": _BOTH_KINDS
    | {
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
        "laurel_rank": 8,
    },
    "gemma4": {"text_config": _GEMMA4, "vision_config": _VISION},
    "gemma4_text": _GEMMA4,
    "vaultgemma": _BOTH_KINDS,
    "deepseek_v2": _LATENT | _ROUTED,
    "deepseek_v3": _LATENT | _ROUTED | {"first_k_dense_replace": 1},
    "deepseek_v32": _LATENT | _ROUTED | _INDEXER | _ONE_DENSE | {"head_dim": 8},
    "deepseek_v4": _ROUTED
    | _INDEXER
    | {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "q_lora_rank": 16,
        "sliding_window": 4,
        "o_groups": 2,
        "o_lora_rank": 16,
        "hc_mult": 2,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {
            "compressed_sparse_attention": 4,
            "heavily_compressed_attention": 8,
        },
    },
    "dots1": _ROUTED,
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "exaone_moe": _EXPERTS | _WINDOW | _ONE_DENSE | {"layer_types": _BOTH_KINDS["layer_types"]},
    "flex_olmo": _EXPERTS,
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "hy_v3": _EXPERTS | _ONE_DENSE | {"head_dim": 8},
    "hy_v4": _LATENT | _ROUTED | _INDEXER | _ONE_DENSE | {"head_dim": 16, "hc_mult": 2},
    "longcat_flash": _LATENT
    | {
        "num_layers": 1,
        "head_dim": 8,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "moe_topk": 2,
        "n_routed_experts": 4,
        "zero_expert_num": 1,
    },
    "mimo_v2_flash": _ROUTED | _ONE_DENSE | _BOTH_KINDS | {"v_head_dim": 8},
    "minicpm3": _LATENT,
    "minimax_m2": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m3_vl_text": _ONE_DENSE
    | {
        "head_dim": 8,
        "rotary_dim": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "dense_intermediate_size": 48,
        "shared_intermediate_size": 16,
        "index_head_dim": 8,
        "index_n_heads": 2,
        "index_block_size": 4,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_topk_blocks": 2,
    },
    "solar_open": _ROUTED | {"head_dim": 8},
    "bitnet": {},
    "cohere2_moe": _EXPERTS | _BOTH_KINDS,
    "granite_swa": _BOTH_KINDS,
    "jais2": {},
    "laguna": _EXPERTS | _BOTH_KINDS | {"shared_expert_intermediate_size": 16},
    "nanochat": {},
    "youtu": _LATENT,
    "hrm_text": {},
    "axk1": _LATENT | _ROUTED,
    "dots3_note_text": _LATENT | _ROUTED,
    "mellum": _EXPERTS | _BOTH_KINDS,
    "flint": {},
    "cwm": _BOTH_KINDS,
    "kimi_k25": {
        "text_config": {"model_type": "deepseek_v3"}
        | _LATENT
        | _ROUTED
        | {"first_k_dense_replace": 1},
        "vision_config": _VISION,
    },
    "phi": {},
    "phi3": {"sliding_window": 4},
    "phimoe": {"num_local_experts": 4},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 4, "layer_types": _BOTH_KINDS["layer_types"]},
    "olmoe": _EXPERTS,
    "granite": {},
    "granitemoe": {},
    "granitemoeshared": {"shared_intermediate_size": 16},
    "smollm3": {},
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "gpt_neox": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": 4},
    "cohere": {},
    "cohere2": _BOTH_KINDS,
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "glm4_moe": _ROUTED | {"head_dim": 8},
    "glm4_moe_lite": _LATENT | _ROUTED | _ONE_DENSE,
    "glm_moe_dsa": _LATENT | _ROUTED | _INDEXER | _ONE_DENSE | {"head_dim": 8},
    "exaone4": {},
    "seed_oss": {"head_dim": 8},
    "nemotron": {},
    "gpt_oss": _BOTH_KINDS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "afmoe": _BOTH_KINDS,
    "falcon": {"alibi": False},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2},
    "biogpt": {},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "init_std": 0.2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
    "bloom": {"n_head": 4, "n_layer": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "lfm2_moe": _EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
    "granitemoehybrid": _MAMBA
    | {
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "head_dim": 8,
        "ssm_state_size": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "chunk_size": 16,
    },
    "kimi_linear": _LATENT
    | _ONE_DENSE
    | {
        "q_lora_rank": None,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "layer_types": _LINEAR["layer_types"],
    },
    "olmo_hybrid": _LINEAR,
    "qwen3_next": _EXPERTS | _LINEAR | {"shared_expert_intermediate_size": 16},
    "qwen3_5": {"text_config": _LINEAR, "vision_config": _VISION},
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _EXPERTS | _LINEAR | {"shared_expert_intermediate_size": 16},
    "zaya": _EXPERTS | {"head_dim": 8, "num_experts_per_tok": 1, "router_hidden_size": 8},
    "bailing_hybrid": _LATENT | _ROUTED,
    "lfm3": {},
    "jamba": {
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "num_experts": 2,
        "use_mamba_kernels": False,
    },
    "minimax": {"head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 4},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16},
    "falcon_mamba": {"state_size": 8},
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {},
}

# Axolotl's SUPPORTED_MULTIPACK_MODEL_TYPES, without gemmoe, which is not in transformers.
PACKED_BY_AXOLOTL = """
afmoe apertus arcee cohere cohere2 deepseek_v2 deepseek_v3 falcon gemma gemma2 gemma3 gemma3_text
glm glm4 gpt_oss granite granitemoe granitemoehybrid granitemoeshared hunyuan_v1_dense
hunyuan_v1_moe lfm2 lfm2_moe llama llama4 ministral ministral3 mistral mixtral mllama_text_model
olmo olmo2 olmo3 phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss smollm3 starcoder2
"""
