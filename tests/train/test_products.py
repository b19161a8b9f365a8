"""Products of fp32 matrices are as exact as fp32 is, by whichever library and whatever is allowed."""

import pytest
import torch
from forks import Program

from edgevit.train import products
from edgevit.train.products import exact_products

ASK_ALLOWED = """
import os, torch
from edgevit.train.products import exact_products

cuda = torch.backends.cuda.matmul

def check(allow, asked, allowed_now):
    exec(allow)
    before = eval(asked)
    for fails in (False, True):
        try:
            with exact_products(torch.device(DEVICE)):
                assert not eval(allowed_now)
                if fails:
                    raise ValueError("restored all the same")
        except ValueError:
            pass
        assert eval(asked) == before, (before, eval(asked))

for case in CASES:
    child = os.fork()  # flags of its own, without importing torch again
    if not child:
        check(*case)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, case
"""
LEGACY, ATTRIBUTE = "torch.get_float32_matmul_precision()", "cuda.fp32_precision"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_are_exact_whatever_the_host_program_allows(device):
    cases = [
        ("pass", LEGACY, "cuda.allow_tf32"),
        ("torch.set_float32_matmul_precision('high')", LEGACY, "cuda.allow_tf32"),
        ("torch.set_float32_matmul_precision('medium')", LEGACY, "cuda.allow_tf32"),
    ]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # newer torch
        cases.append(("cuda.fp32_precision = 'tf32'", ATTRIBUTE, "cuda.fp32_precision == 'tf32'"))
        onednn = "torch.backends.mkldnn.matmul.fp32_precision"
        cases.append((f"{onednn} = 'bf16'", onednn, f"{onednn} == 'bf16'"))
    script = f"CASES, DEVICE = {cases!r}, {device!r}\n{ASK_ALLOWED}"
    program = Program("-c", script)
    assert program.wait() == 0, program.stderr


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("allowed", ["highest", "medium"])
def test_wide_products_have_the_bits_of_fp32_and_leave_what_is_allowed(wide, allowed):
    x = torch.randn(500, 700, generator=torch.Generator().manual_seed(1))
    exact = x.double().mT @ x.double()
    torch.set_float32_matmul_precision(allowed)
    try:
        with exact_products(torch.device("cpu"), wide=wide):
            seen = x.mT @ x
        assert torch.get_float32_matmul_precision() == allowed
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (seen - exact).norm() < 1e-6 * exact.norm()


def test_where_onednn_rounds_products_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(products, "_is_exact_by_onednn", lambda: False)
    with exact_products(torch.device("cpu"), wide=True):
        assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setattr(products, "_is_exact_by_onednn", lambda: True)
    for device, wide, expected in (("cpu", True, "medium"), ("cpu", False, "highest"), ("cuda", True, "highest")):
        with exact_products(torch.device(device), wide=wide):
            assert torch.get_float32_matmul_precision() == expected


def test_a_rounded_pass_around_the_first_question_changes_no_answer():
    products._is_exact_by_onednn.cache_clear()
    alone = products._is_exact_by_onednn()
    products._is_exact_by_onednn.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert products._is_exact_by_onednn() is alone
    products._is_exact_by_onednn.cache_clear()


def test_rounding_is_seen_by_the_products_themselves(monkeypatch):
    plain = torch.Tensor.__matmul__

    def rounded(a, b):
        return plain(a.bfloat16(), b.bfloat16()).float() if a.dtype == torch.float32 else plain(a, b)

    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
    for multiply, expected in ((plain, True), (rounded, False)):
        products._is_exact_by_onednn.cache_clear()
        monkeypatch.setattr(torch.Tensor, "__matmul__", multiply)
        assert products._is_exact_by_onednn() is expected
    products._is_exact_by_onednn.cache_clear()
