"""The table of operations: for each one that is known, its rule. An operation that is not here fixes what it reads."""

from __future__ import annotations

import torch
from torch import fx

from ..propagation import Rule
from . import contractions, elementwise, movement, norms, recurrent

NAMES: dict[Rule, str] = {
    elementwise.same: """alias clone contiguous detach detach_ to _to_copy lift_fresh lift_fresh_copy dropout dropout_
        feature_dropout feature_dropout_ alpha_dropout alpha_dropout_ feature_alpha_dropout type_as float double half
        requires_grad_ positive resolve_conj resolve_neg""",
    elementwise.like: """zeros_like ones_like full_like empty_like rand_like randn_like bernoulli fill fill_ zero_
        native_dropout""",
    elementwise.elementwise: """copy copy_ relu_ elu_ masked_fill masked_fill_ where clamp clamp_ softplus log_sigmoid
        logical_not prelu_ add_ sub_ mul_ div_ pow_ sigmoid_ tanh_ hardtanh_ hardswish_ hardsigmoid_ silu_ mish_ gelu
        leaky_relu_ relu6 relu6_ selu selu_ celu celu_ rrelu rsub floor_divide softsign threshold threshold_ square
        absolute tanhshrink hardshrink softshrink isfinite isinf isnan nan_to_num __and__ __or__ __xor__ mish abs_ exp_
        sqrt_ neg_ clamp_min_ clamp_max_ true_divide multiply subtract divide negative dist_ clip clip_ floor_ ceil_
        round_ rsqrt_ square_ log1p erf""",
    elementwise.along_dimension: """softmax _softmax log_softmax _log_softmax cumsum cumprod sort argsort topk
        logcumsumexp""",
    elementwise.reduction: """mean sum amax amin max min argmax argmin var std prod any all logsumexp norm
        linalg_vector_norm median count_nonzero var_mean std_mean""",
    elementwise.spatial: """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        max_pool2d_with_indices upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d
        upsample_bicubic2d upsample_linear1d upsample_trilinear3d _upsample_nearest_exact2d _adaptive_avg_pool2d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa max_pool1d_with_indices max_pool3d_with_indices""",
    elementwise.created: "arange eye linspace scalar_tensor rand randn randint randperm tensor tril_indices",
    elementwise.filled: "zeros ones full empty new_zeros new_ones new_full new_empty",
    elementwise.nothing: "_assert_tensor_metadata _assert_scalar _assert_async sym_size sym_constrain_range_for_size",
    movement.permute: "permute transpose t swapaxes swapdims numpy_T mT transpose_ t_",
    movement.reshape: "view reshape flatten unflatten _unsafe_view squeeze squeeze_ view_as reshape_as ravel",
    movement.unsqueeze: "unsqueeze unsqueeze_",
    movement.expand: "expand expand_as broadcast_to",
    movement.repeat: "repeat",
    movement.repeat_interleave: "repeat_interleave",
    movement.flip: "flip roll",
    movement.slice_: "slice",
    movement.select: "select",
    movement.split: "split split_with_sizes chunk unbind tensor_split",
    movement.concatenate: "cat concat concatenate stack",
    movement.pad: "pad constant_pad_nd",
    movement.pixel_shuffle: "pixel_shuffle",
    movement.index: "index",
    movement.index_select: "index_select",
    movement.embedding: "embedding",
    contractions.linear: "linear",
    contractions.matmul: "matmul mm bmm mv dot",
    contractions.added_product: "addmm baddbmm",
    contractions.einsum: "einsum",
    contractions.grouped_product: "_grouped_mm transformers::grouped_mm_fallback",
    contractions.attention: "scaled_dot_product_attention",
    contractions.convolution: """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution""",
    norms.batch_norm: "batch_norm _native_batch_norm_legit_no_training native_batch_norm",
    norms.instance_norm: "instance_norm",
    norms.prelu: "prelu",
    norms.layer_norm: "layer_norm native_layer_norm rms_norm",
    norms.group_norm: "group_norm",
    recurrent.layers: "lstm gru rnn_tanh rnn_relu",
    recurrent.cell: "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
}
RULES: dict[str, Rule] = {name: rule for rule, names in NAMES.items() for name in names.split()}


def rule_of(node: fx.Node) -> Rule:
    """The rule of an operation."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return elementwise.inner_graph
    if not isinstance(target, torch._ops.OpOverload):
        return elementwise.unknown
    name = target._schema.name.removeprefix("aten::")
    if name in RULES:
        return RULES[name]
    return elementwise.elementwise if torch.Tag.pointwise in target.tags else elementwise.unknown
