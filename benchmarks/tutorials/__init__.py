"""Tutorials: programs in cells under examples/tutorials, as pages of the site and as notebooks, with what they print.

    python -m benchmarks.tutorials                 # run all, write the record, draw, write pages and notebooks
    python -m benchmarks.tutorials your_model       # run some
    python -m benchmarks.tutorials write           # run none: everything else from the record

A script is the source: `# %%` begins a cell of code and `# %% [markdown]` one of text, as editors and Jupytext have
it. The record, results/benchmarks/tutorials.json, has what each cell printed and the numbers of the figures, with a
checksum of the code that they are from. The text tutorial reads its encoder from the folder that ENCODER names.
"""
