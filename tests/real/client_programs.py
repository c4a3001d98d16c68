"""What users of Cohere's, langchain's and llama-index's clients write; a program of their environment (`clients`).

    python client_programs.py NAME URL '{"texts": [...], "query": ..., "documents": [...]}'

prints what the client NAME (a row of `PROGRAMS`) makes of the texts, as JSON: vectors of the texts and of the query, or
[number of a document, its score], the best first. The server has the models "embed" and "rank"; "rank" is its default
one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

Ranked = list[tuple[int, float]]
Vectors = list[list[float]]


def cohere_rerank(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Ranked:
    """Cohere's SDK."""
    import cohere

    client = cohere.ClientV2(api_key="none", base_url=url)
    answer = client.rerank(model="rank", query=query, documents=list(documents), top_n=2)
    return [(one.index, one.relevance_score) for one in answer.results]


def langchain_openai(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Vectors:
    """langchain's embeddings of OpenAI's API. Unless its check of lengths is off, it sends OpenAI's token ids."""
    from langchain_openai import OpenAIEmbeddings

    embedder = OpenAIEmbeddings(
        model="embed", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0
    )
    return [*embedder.embed_documents(list(texts)), embedder.embed_query(query)]


def langchain_huggingface(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Vectors:
    """langchain's embeddings of Hugging Face's endpoints, which take a URL by their client alone."""
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings

    embedder = HuggingFaceEndpointEmbeddings(model="embed", huggingfacehub_api_token="none")
    embedder.client = InferenceClient(model=f"{url}/?model_name=embed", token="none")
    return [*embedder.embed_documents(list(texts)), embedder.embed_query(query)]


def langchain_cohere(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Ranked:
    """langchain's compressor of documents by Cohere's API."""
    from langchain_cohere import CohereRerank

    ranker = CohereRerank(model="rank", base_url=url, cohere_api_key="none", top_n=2)
    return [(one["index"], one["relevance_score"]) for one in ranker.rerank(list(documents), query)]


def llama_index_openai(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Vectors:
    """llama-index's embeddings of any server with OpenAI's API."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embedder = OpenAILikeEmbedding(model_name="embed", api_base=f"{url}/v1", api_key="none", max_retries=0)
    return [*embedder.get_text_embedding_batch(list(texts)), embedder.get_query_embedding(query)]


def llama_index_tei(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Vectors:
    """llama-index's embeddings of Text Embeddings Inference."""
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    embedder = TextEmbeddingsInference(model_name="embed", base_url=url, endpoint="/embed?model_name=embed")
    return [*embedder.get_text_embedding_batch(list(texts)), embedder.get_query_embedding(query)]


def llama_index_tei_rerank(url: str, texts: Sequence[str], query: str, documents: Sequence[str]) -> Ranked:
    """llama-index's postprocessor of what a search has found, by Text Embeddings Inference."""
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(number))) for number, text in enumerate(documents)]
    ranked = TextEmbeddingInference(base_url=url, top_n=2).postprocess_nodes(nodes, query_str=query)
    return [(int(one.node.node_id), one.score) for one in ranked]


PROGRAMS: Final[dict[str, Callable[..., Any]]] = {
    program.__name__: program
    for program in (
        *(cohere_rerank, langchain_openai, langchain_huggingface, langchain_cohere),
        *(llama_index_openai, llama_index_tei, llama_index_tei_rerank),
    )
}

if __name__ == "__main__":
    name, url, given = sys.argv[1:]
    print(json.dumps(PROGRAMS[name](url, **json.loads(given))))
