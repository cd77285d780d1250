# SPDX-License-Identifier: Apache-2.0
"""What may have been meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

# What other frameworks call it -> what it may be called here; the first that exists is suggested.
ELSEWHERE = {
    name: ours.split()
    for ours, names in {
        "affine": "linear dense fully_connected fc addmm",
        "convolution": "conv conv1d conv2d conv3d",
        "deconvolution": "conv_transpose conv_transpose1d conv_transpose2d conv_transpose3d",
        "depthwise_convolution": "depthwise_conv2d",
        "batch_normalization": "batch_norm batchnorm batchnorm1d batchnorm2d",
        "layer_normalization": "layer_norm layernorm",
        "group_normalization": "group_norm groupnorm",
        "instance_normalization": "instance_norm instancenorm2d",
        "embed": "embedding",
        "max_pooling": "max_pool1d max_pool2d max_pool3d maxpool2d",
        "average_pooling": "avg_pool1d avg_pool2d avg_pool3d avgpool2d",
        "global_average_pooling": "adaptive_avg_pool2d adaptiveavgpool2d",
        "softmax_cross_entropy": "cross_entropy crossentropyloss sparse_categorical_crossentropy",
        "sigmoid_cross_entropy": "binary_cross_entropy_with_logits bcewithlogitsloss",
        "binary_cross_entropy": "bceloss bce",
        "squared_error": "mse mse_loss mseloss",
        "absolute_error": "l1_loss l1loss mae",
        "huber_loss": "smooth_l1_loss",
        "concatenate": "cat concat",
        "transpose": "permute swapaxes",
        "reshape": "view flatten squeeze unsqueeze expand_dims",
        "pow_scalar": "sqrt pow",
        "clip_by_value": "clamp clip",
        "interpolate": "upsample resize",
        "batch_matmul": "matmul mm bmm",
        "clip_grad_norm": "clip_grad_norm_ clip_by_global_norm clip_grad_by_global_norm",
        "constant": "zeros ones full",
        "var": "variance reduce_variance",
        "std": "reduce_std standard_deviation",
        "logsumexp": "log_sum_exp reduce_logsumexp",
        "max min": "argmax argmin amax",
        "broadcast": "expand",
        "multi_head_attention": "multiheadattention",
        "attention": "scaled_dot_product_attention sdpa flash_attention",
        "rms_normalization": "rms_norm rmsnorm rmsnormalization",
        "rotary_embedding": "apply_rotary_pos_emb rotary rope",
        "linear_cross_entropy": "fused_linear_cross_entropy liger_cross_entropy",
        "alpha eta": "lr",
        "alpha lr eta": "learning_rate",
        "beta1": "betas",
        "wd": "weight_decay",
        "kernel": "kernel_size ksize",
        "pad": "padding",
        "group": "groups",
        "outmaps n_outmaps": "out_channels out_features filters units",
        "n_inputs": "num_embeddings",
        "n_features": "embedding_dim",
        "with_bias": "bias use_bias",
        "axis axes": "dim",
        "keepdims": "keepdim",
        "val": "value scalar",
        "no_grad": "inference_mode",
        "batch_stat": "training train",
        "Variable": "tensor",
        "NdArray": "array ndarray",
        "get_parameter_or_create": "parameter",
        "get_parameters": "parameters",
        "load_parameters": "load load_state_dict",
        "save_parameters": "save state_dict",
        "functions": "functional",
        "solvers": "optim optimizers",
        "initializer": "init initializers",
        "data_iterator_simple": "dataloader tensordataset",
        "CosineScheduler": "cosineannealinglr",
        "StepScheduler": "steplr multisteplr",
        "ExponentialScheduler": "exponentiallr",
    }.items()
    for name in names.split()
}


# Where a name may be that was asked of another module.
PUBLIC = (
    "nnl.parametric_functions",
    "nnl.functions",
    "nnl.solvers",
    "nnl.utils.learning_rate_scheduler",
    "nnl.utils.data_iterator",
)

# What to write here -> what objects of other frameworks have for it; they are x, solver and net.
VARIABLE = {
    "float(x.d)": "item",
    "x.d": "numpy cpu",
    "x.d.tolist()": "tolist",
    "x.d.dtype": "dtype",
    "F.reshape(x, shape)": "view flatten ravel squeeze unsqueeze expand_dims",
    "F.transpose(x, axes)": "T t permute transpose swapaxes",
    "F.mean(x, axis)": "mean",
    "F.std(x, axis)": "std",
    "F.var(x, axis)": "var",
    "F.logsumexp(x, axis)": "logsumexp",
    "F.sum(x, axis)": "sum",
    "F.max(x, axis), or F.maximum2(x, y)": "max amax maximum",
    "F.min(x, axis), or F.minimum2(x, y)": "min amin minimum",
    "F.max(x, axis, only_index=True), or x.d.argmax(axis)": "argmax",
    "F.min(x, axis, only_index=True), or x.d.argmin(axis)": "argmin",
    "F.exp(x)": "exp",
    "F.log(x)": "log",
    "F.abs(x)": "abs",
    "F.relu(x)": "relu",
    "F.tanh(x)": "tanh",
    "F.sigmoid(x)": "sigmoid",
    "F.softmax(x, axis)": "softmax",
    "F.clip_by_value(x, min, max)": "clamp clip",
    "x ** 0.5": "sqrt",
    "x ** n": "pow",
    "x @ y": "matmul mm bmm dot",
    "F.broadcast(x, shape)": "expand expand_as",
    "x.unlinked()": "detach",
    "F.identity(x)": "clone copy",
    "x.need_grad": "requires_grad",
    "x.need_grad = True": "requires_grad_",
    "x.parent": "grad_fn",
    "x.data.cast(dtype), in place": "half float double int long astype type",
    "nn.set_default_context(context): a context says where and in which type": "to cuda device",
}
SOLVER = {
    "S.clip_grad_norm(solver, max_norm)": "clip_grad_norm clip_grad_norm_ clip_by_global_norm",
    "solver.update()": "step minimize apply_gradients",
    "solver.set_learning_rate(rate)": "lr param_groups",
    "solver.set_parameters(parameters, reset=False)": "add_param_group",
    "solver.save_states(path), or solver.get_states()": "state_dict",
    "solver.load_states(path), or solver.set_states(states)": "load_state_dict",
}
MODULE = {
    "net.get_parameters()": "parameters named_parameters",
    "net.get_parameters(), or net.save_parameters(path)": "state_dict",
    "net.set_parameters(parameters), or net.load_parameters(path)": "load_state_dict",
    "net.training = True": "train",
    "net.training = False": "eval",
    "net(x), which runs the method call": "forward",
    "net.submodules": "children named_children modules named_modules",
    "net.name = module": "add_module register_module",
    "PF.get_parameter_or_create(name, shape) in a method": "register_parameter register_buffer",
    "nn.set_default_context(context)": "to cuda cpu",
}


class Elsewhere:
    """A name of other frameworks: asking for it raises an AttributeError that says what to write.

    A `__getattr__` of the class would do the same and make each name that there is slower: reading
    one of a Variable took 32 ns in place of 15.
    """

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead

    def __get__(self, obj: Any, owner: type) -> Any:
        what = f"type object {owner.__name__!r}" if obj is None else f"{owner.__name__!r} object"
        text = f"{what} has no attribute {self.name!r}: write {self.instead}"
        raise AttributeError(text, name=None, obj=None)  # Python would add a guess of its own

    def __repr__(self) -> str:
        return f"not there: write {self.instead}"


def knows_elsewhere(table: dict[str, str]) -> Callable[[type], Any]:
    """Decorate a class whose objects say what the names of a table are called here."""

    def mark(cls: Any) -> Any:
        for instead, names in table.items():
            for name in names.split():
                assert not hasattr(cls, name), name
                setattr(cls, name, Elsewhere(name, instead))
        cls.__dir__ = _without_elsewhere
        return cls

    return mark


def _without_elsewhere(self: Any) -> list[str]:
    known: dict[str, Any] = {}
    for cls in reversed(type(self).__mro__):
        known.update(vars(cls))
    known.update(getattr(self, "__dict__", {}))
    return [n for n in object.__dir__(self) if not isinstance(known.get(n), Elsewhere)]


def did_you_mean(name: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """ ": did you mean affine?", or nothing.

    Args:
        names: What there is.
        others: Modules in which a name may be that is found elsewhere only.
    """
    from difflib import get_close_matches  # not needed by a program without errors

    key = name.lower()
    known = _by_lower_case(names)
    found = _same(key, known)
    for module in others:
        if not found:
            there = _same(key, _by_lower_case(_public(import_module(module))))
            found = f"{module}.{there}" if there else ""
    close = [] if found else get_close_matches(key, known, 1)
    found = known[close[0]] if close else found
    return f": did you mean {found}?" if found else ""


def _by_lower_case(names: Iterable[str]) -> dict[str, str]:
    return {n.lower(): n for n in reversed(list(names)) if not n.startswith("_")}


def _public(module: Any) -> Iterable[str]:
    ours = [n for n, v in vars(module).items() if getattr(v, "__module__", "").startswith("nnl.")]
    names: list[str] = getattr(module, "__all__", ours)
    return names


def _same(key: str, known: dict[str, str]) -> str:
    """What a name is called here, or the name itself in its own case; "" if there is neither."""
    ours = [n for n in ELSEWHERE.get(key, ()) if n.lower() in known]
    return ours[0] if ours else known.get(key, "")


def module_getattr(module: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a module that suggests a name for one that it does not have."""

    def missing(name: str) -> Any:
        hint = "" if name.startswith("_") else did_you_mean(name, names(), PUBLIC)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return missing
