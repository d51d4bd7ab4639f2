"""The modules whose tests are measured, and the test files near each."""

from __future__ import annotations

_STORE = tuple(
    f"tests/store/test_{name}.py"
    for name in (
        "store",
        "store_refusals",
        "store_faults",
        "lineage",
        "links",
        "folder_fuzz",
        "manage",
        "manage_together",
        "signed_store",
        "repair",
        "corpus",
    )
)

TARGETS: dict[str, tuple[str, ...]] = {
    "halrp.seeding": ("tests/test_seeding.py", "tests/test_order.py", "tests/test_parallel.py"),
    "halrp.model.codec": (
        "tests/model/test_codec.py",
        "tests/model/test_int4.py",
        "tests/store/test_task_file.py",
        "tests/model/test_delta.py",
    ),
    "halrp.model.file_size": (
        "tests/model/test_delta.py",
        "tests/store/test_task_file.py",
        "tests/store/test_part_files.py",
        "tests/method/test_budget.py",
    ),
    "halrp.model.int4": ("tests/model/test_int4.py", "tests/model/test_codec.py", "tests/store/test_part_files.py"),
    "halrp.model.task_parts": (
        "tests/model/test_task_parts.py",
        "tests/model/test_mixed_parts.py",
        "tests/store/test_part_files.py",
    ),
    "halrp.method.allocate": (
        "tests/method/test_allocate.py",
        "tests/method/test_budget.py",
        "tests/method/test_method.py",
    ),
    "halrp.method.budget": (
        "tests/method/test_budget.py",
        "tests/method/test_allocate.py",
        "tests/method/test_method.py",
    ),
    "halrp.store.atomic": (
        "tests/store/test_atomic.py",
        "tests/reliability/test_shim.py",
    ),
    "halrp.store.fitting": (
        "tests/store/test_fitting.py",
        "tests/store/test_task_file.py",
        "tests/store/test_task_file_fuzz.py",
        "tests/store/test_part_files.py",
        "tests/store/test_store.py",
        "tests/store/test_store_refusals.py",
    ),
    "halrp.store.format_1": ("tests/store/test_format_1_fuzz.py", "tests/store/test_corpus.py"),
    "halrp.store.task_file": (
        "tests/store/test_task_file.py",
        "tests/store/test_task_file_fuzz.py",
        "tests/store/test_part_files.py",
    ),
    "halrp.store.part_codes": (
        "tests/store/test_part_files.py",
        "tests/store/test_part_stores.py",
        "tests/store/test_part_corpus.py",
    ),
    "halrp.store.streams": (
        "tests/store/test_task_file.py",
        "tests/store/test_task_file_fuzz.py",
        "tests/store/test_part_files.py",
    ),
    "halrp.store.manifest": (
        "tests/store/test_manifest.py",
        "tests/store/test_folder_fuzz.py",
        "tests/store/test_lineage.py",
        "tests/store/test_store.py",
        "tests/store/test_store_refusals.py",
    ),
    "halrp.store.store": tuple(
        f"tests/store/test_{name}.py"
        for name in (
            *("store_calls", "store", "store_refusals", "lineage"),
            *("manage", "manage_together", "signed_store"),
        )
    ),
    "halrp.store.lineage": _STORE,
    **{f"halrp.store.{name}": (f"tests/store/test_{name}.py", *_STORE) for name in ("commit", "folder", "trash")},
}
