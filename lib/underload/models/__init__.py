"""pocket and pocket-draft: the two models that come with the library, and everything that made them.

    stories   a small world of people waiting in line; writes stories, and checks them
    notes     sums, worked lines of the book's formulas, its vocabulary; writes them, and checks them
    corpus    documents and chats from both, and what is held out of training
    network   the forward pass that is trained (full sequences; the decoder has its own)
    train     python -m underload.models.train: corpus -> tokenizer -> weights -> evaluation -> card
    evaluate  what the shipped weights can do, measured
    card      the model cards, written from the evaluation

The weights lie in the folders `pocket/` and `pocket-draft/`, in the layout of a Hugging Face checkpoint:
`load_model("pocket")` reads them, and so does `transformers`.
"""
