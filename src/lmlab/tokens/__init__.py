"""Text to token ids and back to files: train a tokenizer, tokenize documents, read the token store."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.tokens.steps import (
        Tokenizer as Tokenizer,
        TokenStore as TokenStore,
        tokenize as tokenize,
        train_tokenizer as train_tokenizer,
    )
    from lmlab.tokens.store import Source as Source, Store as Store, open_store as open_store
    from lmlab.tokens.tokenizer import END_OF_TEXT as END_OF_TEXT, load_tokenizer as load_tokenizer

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "END_OF_TEXT": ".tokenizer",
        "Source": ".store",
        "Store": ".store",
        "TokenStore": ".steps",
        "Tokenizer": ".steps",
        "load_tokenizer": ".tokenizer",
        "open_store": ".store",
        "tokenize": ".steps",
        "train_tokenizer": ".steps",
    },
)
