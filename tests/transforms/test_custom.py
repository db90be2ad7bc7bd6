import pytest
import torch

from specverify.errors import UsageError
from specverify.transforms import Transform
from specverify.transforms.custom import Custom

IDS = torch.tensor([[1, 2]])
LOGITS = torch.tensor([[0.5, 1.5]])


def test_a_processor_may_change_its_arguments():
    def processor(input_ids, scores):
        input_ids.zero_()
        return scores.add_(1).float()

    result = Custom(processor)(IDS, LOGITS)
    assert result.dtype == torch.float64
    assert result.tolist() == [[1.5, 2.5]]
    assert IDS.tolist() == [[1, 2]]
    assert LOGITS.tolist() == [[0.5, 1.5]]


@pytest.mark.parametrize("wrong", [None, torch.zeros(2), torch.zeros(1, 3)])
def test_a_wrong_result_is_refused_by_name(wrong):
    def broken(input_ids, scores):
        return wrong

    with pytest.raises(UsageError, match=r"processor broken returned .* shape \[1, 2\]"):
        Custom(broken)(IDS, LOGITS)


def test_counts_as_a_transform_that_reads_the_history():
    assert isinstance(Custom(torch.add), Transform)
    assert not Custom(torch.add).history_free
