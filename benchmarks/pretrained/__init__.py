"""Methods side by side on a pretrained network: frozen features, LoRA, fine-tuning and halrp, by accuracy and bytes.

    python -m benchmarks.pretrained vision --methods probe lora-r4 halrp-60 --tasks dev --shots 30 --seeds 0 1 2
    python -m benchmarks.pretrained text --methods probe lora-r8 --tasks dev --shots 60
    python -m benchmarks.pretrained table

Every fit is a line of `results/pretrained/*.jsonl`, and a run skips the lines that are there, so it may be killed at
any moment. What is compared, and how settings are chosen, is in `docs/pretrained.md`.
"""
