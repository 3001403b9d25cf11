"""Text to token ids and back to files: train a tokenizer, tokenize documents, read the token store."""

from typing import TYPE_CHECKING

from lmlab.core.lazy import exports

if TYPE_CHECKING:
    from lmlab.tokens.chat import Chat as Chat, load_chat as load_chat
    from lmlab.tokens.steps import (
        Tokenizer as Tokenizer,
        TokenStore as TokenStore,
        import_tokenizer as import_tokenizer,
        merge_tokens as merge_tokens,
        slice_tokens as slice_tokens,
        tokenize as tokenize,
        tokenize_chat as tokenize_chat,
        train_tokenizer as train_tokenizer,
    )
    from lmlab.tokens.store import Source as Source, Store as Store, open_store as open_store
    from lmlab.tokens.tokenizer import END_OF_TEXT as END_OF_TEXT, load_tokenizer as load_tokenizer

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "END_OF_TEXT": ".tokenizer",
        "Chat": ".chat",
        "Source": ".store",
        "Store": ".store",
        "TokenStore": ".steps",
        "Tokenizer": ".steps",
        "import_tokenizer": ".steps",
        "load_chat": ".chat",
        "load_tokenizer": ".tokenizer",
        "merge_tokens": ".steps",
        "open_store": ".store",
        "slice_tokens": ".steps",
        "tokenize": ".steps",
        "tokenize_chat": ".steps",
        "train_tokenizer": ".steps",
    },
)
