"""Paged keys and values: the same results as with dense ones."""

import numpy as np
import pytest
import rapt

torch = pytest.importorskip("torch")
fa = pytest.importorskip("rapt.compat.flash_attn")

LENGTHS = [70, 0, 33, 16]


def pages_of(dense, lengths, page_size, spare=3):
    """A cache [num_pages, page_size, heads, dim] in random page order, full of NaN where no key is, and its table."""
    count = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(count) + spare)
    cache = torch.full((len(order), page_size, dense.shape[1], dense.shape[3]), float("nan"), dtype=dense.dtype)
    table = torch.full((len(lengths), max(count) + 1), -7, dtype=torch.int32)
    page = 0
    for b, n in enumerate(lengths):
        for i in range(count[b]):
            rows = dense[b, :, i * page_size : min((i + 1) * page_size, n)].transpose(0, 1)
            cache[order[page], : len(rows)] = rows
            table[b, i] = order[page]
            page += 1
    return cache, table


def problem(seqlen_q, page_size, dtype=torch.float32):
    torch.manual_seed(page_size)
    q = torch.randn(4, 4, seqlen_q, 32, dtype=dtype)
    k, v = (torch.randn(4, 2, 70, 32, dtype=dtype) for _ in range(2))
    used = torch.tensor(LENGTHS, dtype=torch.int32)
    k_cache, table = pages_of(k, LENGTHS, page_size)
    v_cache, _ = pages_of(v, LENGTHS, page_size)
    # both caches need the same order of pages
    v_cache = torch.full_like(k_cache, float("nan"))
    for b, n in enumerate(LENGTHS):
        for j in range(n):
            v_cache[table[b, j // page_size], j % page_size] = v[b, :, j]
    return q, k, v, used, k_cache, v_cache, table


@pytest.mark.parametrize("page_size", [1, 7, 16, 128])
@pytest.mark.parametrize("seqlen_q, causal", [(1, False), (9, True)])
def test_sdpa_reads_pages(page_size, seqlen_q, causal):
    q, k, v, used, k_cache, v_cache, table = problem(seqlen_q, page_size)
    expected = rapt.sdpa(q, k, v, causal=causal, seqused_k=used)
    caches = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    for extra in ({}, {"max_seqlen_k": 70}):
        out = rapt.sdpa(q, *caches, causal=causal, seqused_k=used, block_table=table, **extra)
        torch.testing.assert_close(out, expected)
    out = rapt.sdpa(
        *(x.numpy() for x in (q, *caches)), causal=causal, seqused_k=used.numpy(), block_table=table.numpy()
    )
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_values_can_be_a_part_of_the_keys(device):
    """Multi-head latent attention: v is k[..., :512], with and without pages."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(1)
    q = torch.randn(2, 16, 1, 576, dtype=torch.bfloat16, device=device)
    k = torch.randn(2, 1, 300, 576, dtype=torch.bfloat16, device=device)
    v = k[..., :512]
    expected = rapt.sdpa(q, k, v.contiguous())
    assert " v_in_k" in rapt.explain(q, k, v)
    assert " v_in_k" not in rapt.explain(q, k, v.contiguous())
    torch.testing.assert_close(rapt.sdpa(q, k, v), expected, rtol=0.02, atol=0.002)
    cache, table = pages_of(k.cpu(), [300, 300], 16)
    cache, table = cache.transpose(1, 2).to(device), table.clamp(min=0).to(device)
    used = torch.full((2,), 300, dtype=torch.int32, device=device)
    found = rapt.sdpa(q, cache, cache[..., :512], block_table=table, seqused_k=used, max_seqlen_k=300)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.002)


def test_flash_attention_signatures_read_pages():
    q, k, v, used, k_cache, v_cache, table = problem(3, 16, torch.bfloat16)
    expected = rapt.sdpa(q, k, v, causal=True, seqused_k=used)
    out = fa.flash_attn_with_kvcache(
        q.transpose(1, 2), k_cache, v_cache, cache_seqlens=used, block_table=table, causal=True
    )
    torch.testing.assert_close(out.transpose(1, 2), expected)
    packed = q.transpose(1, 2).reshape(12, 4, 32)
    ends = torch.tensor([0, 3, 6, 9, 12], dtype=torch.int32)
    ends_k = torch.tensor([0, 70, 70, 103, 119], dtype=torch.int32)
    out = fa.flash_attn_varlen_func(packed, k_cache, v_cache, ends, ends_k, 3, 70, causal=True, block_table=table)
    torch.testing.assert_close(out.reshape(4, 3, 4, 32).transpose(1, 2), expected)
    one = fa.flash_attn_with_kvcache(q[:1].transpose(1, 2), k_cache, v_cache, cache_seqlens=70, block_table=table[:1])
    torch.testing.assert_close(one.transpose(1, 2), rapt.sdpa(q[:1], k[:1], v[:1]))


@pytest.mark.parametrize("length", [True, -1, 97])
def test_a_wrong_cache_seqlens_is_refused_by_name(length):
    q, _, _, _, k_cache, v_cache, table = problem(1, 16)
    with pytest.raises(rapt.InvalidArgument, match=f"cache_seqlens is {length}: must be (0 to 96|an int)"):
        fa.flash_attn_with_kvcache(q.transpose(1, 2), k_cache, v_cache, cache_seqlens=length, block_table=table)


def test_wrong_tables_are_refused():
    q, _, _, used, k_cache, v_cache, table = problem(1, 16)
    caches = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    wrong = table.clone()
    wrong[2, 1] = len(k_cache)
    with pytest.raises(rapt.InvalidArgument, match=r"block_table\[2, 1\] = 12: must be a page of k, from 0 to 11"):
        rapt.sdpa(q, *caches, seqused_k=used, block_table=wrong)
    with pytest.raises(rapt.InvalidArgument, match="max_seqlen_k = 97: must be at most 96"):
        rapt.sdpa(q, *caches, seqused_k=used, block_table=table, max_seqlen_k=97)
    with pytest.raises(rapt.InvalidArgument, match="block_table.dtype = i64: must be i32"):
        rapt.sdpa(q, *caches, seqused_k=used, block_table=table.long())
    with pytest.raises(rapt.InvalidArgument, match=r"block_table.rank = 1 .*: must be 2, \[batch, pages\]"):
        rapt.sdpa(q, *caches, seqused_k=used, block_table=table[0])
    with pytest.raises(rapt.InvalidArgument, match=r"seqused_k\[0\] = 97"):
        rapt.sdpa(q, *caches, seqused_k=used + 27, block_table=table)
    with pytest.raises(rapt.InvalidArgument, match="v.shape.*page_size"):
        rapt.sdpa(q, caches[0], caches[1][:, :, :8], seqused_k=used, block_table=table)


def test_the_flop_counter_counts_keys_in_use():
    counter = pytest.importorskip("torch.utils.flop_counter")
    q, _, _, used, k_cache, v_cache, table = problem(3, 16)
    caches = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    packed, ends = q.transpose(1, 2).reshape(12, 4, 32), torch.tensor([0, 3, 6, 9, 12], dtype=torch.int32)
    for queries, options in [(q, {}), (packed, {"cu_seqlens_q": ends, "max_seqlen_q": 3})]:
        with counter.FlopCounterMode(display=False) as mode:
            rapt.sdpa(queries, *caches, seqused_k=used, block_table=table, **options)
        assert mode.get_total_flops() == 2 * 4 * 3 * sum(LENGTHS) * 64
        compiled = torch.compile(
            lambda x, options=options: rapt.sdpa(x, *caches, seqused_k=used, block_table=table, **options),
            fullgraph=True,
            backend="aot_eager",
        )
        assert torch.equal(compiled(queries), rapt.sdpa(queries, *caches, seqused_k=used, block_table=table, **options))


@pytest.mark.parametrize("page_size", [1, 16, 100])
def test_scales_of_single_keys_are_in_pages(page_size):
    torch.manual_seed(page_size)
    q, k, v = torch.randn(4, 4, 2, 32), torch.randn(4, 2, 70, 32), torch.randn(4, 2, 70, 32)
    used, lengths = torch.tensor(LENGTHS, dtype=torch.int32), LENGTHS
    k8, v8 = rapt.quantize(k, scales="token"), rapt.quantize(v, scales="token")
    kinds = {"k_scales": "token", "v_scales": "token"}
    expected = rapt.sdpa(q, k8.codes, v8.codes, k_descale=k8.descale, v_descale=v8.descale, seqused_k=used, **kinds)

    _, table = pages_of(k, lengths, page_size)
    num_pages = int(table.max()) + 2
    caches = [torch.full((num_pages, page_size, 2, 32), float("nan")).to(k8.codes.dtype) for _ in "kv"]
    scales = [torch.full((num_pages, page_size, 2), float("nan")) for _ in "kv"]
    for b, n in enumerate(lengths):
        for j in range(n):
            place = int(table[b, j // page_size]), j % page_size
            for cache, scale, source in zip(caches, scales, (k8, v8)):
                cache[place] = source.codes[b, :, j]
                scale[place] = source.descale[b, :, j]

    def paged(q):
        return rapt.sdpa(
            q,
            *(cache.transpose(1, 2) for cache in caches),
            k_descale=scales[0],
            v_descale=scales[1],
            seqused_k=used,
            block_table=table,
            **kinds,
        )

    assert torch.equal(paged(q), expected)
    assert torch.equal(torch.compile(paged, fullgraph=True, backend="aot_eager")(q), expected)
    with pytest.raises(rapt.InvalidArgument, match=r"k_descale.*\[num_pages, page_size, heads_k\]"):
        scales[0] = k8.descale
        paged(q)
