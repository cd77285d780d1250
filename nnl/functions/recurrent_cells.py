# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in numpy: one direction of one layer, forward and backward in time.

Everything that does not depend on the previous step is one matrix product over all steps; what is
left in the loop over time is the product with the state and the gates. Weights are split as
wx (gates * H, I) and wh (gates * H, H); steps run from 0 to T - 1, so a reverse direction gets its
arrays flipped.
"""

from __future__ import annotations

__all__: list[str] = []


class Plain:
    """h = f(wx x + wh h + b) with f tanh or max(0, .)."""

    gates, bias_rows, saved, has_cell = 1, 1, 0, False

    def __init__(self, relu):
        self.relu = relu

    def forward(self, xp, x, h, c, wx, wh, b, hs, saved, cs):
        """Write the states of all steps to hs (T, B, H); return the last h and c."""
        steps, batch, size = hs.shape
        pre = _inputs(xp, x, wx, b).reshape(steps, batch, size)
        wh = xp.ascontiguousarray(wh.T)
        for t in range(steps):
            step = pre[t]
            step += xp.matmul(h, wh)
            h = xp.maximum(step, 0, out=step) if self.relu else xp.tanh(step, out=step)
            hs[t] = h
        return h, None

    def backward(self, xp, ghs, gh, gc, x, h, c, wx, wh, hs, saved, cs):
        """Gradients of (x, h, c, wx, wh, b) from those of all states and of the last."""
        slope = (hs > 0).astype(hs.dtype) if self.relu else 1 - hs * hs
        g = xp.empty(hs.shape, hs.dtype)
        for t in reversed(range(len(hs))):
            step = xp.add(ghs[t], gh, out=g[t])
            step *= slope[t]
            gh = xp.matmul(step, wh)
        return (*_products(xp, g, g, x, h, wx, hs), gh, None, _rows(g))


class Lstm:
    """i, f, n, o = gates(wx x + wh h + b), c = f c + i n, h = o tanh(c); n is a tanh."""

    gates, bias_rows, saved, has_cell = 4, 4, 4, True

    def forward(self, xp, x, h, c, wx, wh, b, hs, saved, cs):
        steps, batch, size = hs.shape
        saved.reshape(steps * batch, 4 * size)[...] = _inputs(xp, x, wx, b)
        # a sigmoid is a tanh of half the argument, halved and raised by 1/2: one tanh for all gates
        half = xp.full(4 * size, 0.5, hs.dtype)
        half[2 * size : 3 * size] = 1
        rest = 1 - half
        wh = xp.ascontiguousarray(wh.T)
        for t in range(steps):
            gate = saved[t]
            gate += xp.matmul(h, wh)
            gate *= half
            xp.tanh(gate, out=gate)
            gate *= half
            gate += rest
            i, f, n, o = (gate[:, k * size : (k + 1) * size] for k in range(4))
            c = xp.multiply(f, c, out=cs[t])
            c += i * n
            h = o * xp.tanh(c)
            hs[t] = h
        return h, c

    def backward(self, xp, ghs, gh, gc, x, h, c, wx, wh, hs, saved, cs):
        steps, batch, size = hs.shape
        slope = saved * (1 - saved)
        n_all = saved[..., 2 * size : 3 * size]
        slope[..., 2 * size : 3 * size] = 1 - n_all * n_all
        tanh_c = xp.tanh(cs)
        g = xp.empty(saved.shape, hs.dtype)
        for t in reversed(range(steps)):
            i, f, n, o = (saved[t][:, k * size : (k + 1) * size] for k in range(4))
            tc, step = tanh_c[t], g[t]
            gh = gh + ghs[t]
            gc = gc + gh * o * (1 - tc * tc)
            step[:, :size] = gc * n
            step[:, size : 2 * size] = gc * (cs[t - 1] if t else c)
            step[:, 2 * size : 3 * size] = gc * i
            step[:, 3 * size :] = gh * tc
            step *= slope[t]
            gc = gc * f
            gh = xp.matmul(step, wh)
        return (*_products(xp, g, g, x, h, wx, hs), gh, gc, _rows(g))


class Gru:
    """r, z = sigmoid(wx x + wh h + b), n = tanh(wx x + b + r (wh h + b')), h = (1 - z) n + z h."""

    gates, bias_rows, saved, has_cell = 3, 4, 4, False

    def forward(self, xp, x, h, c, wx, wh, b, hs, saved, cs):
        steps, batch, size = hs.shape
        inputs = _inputs(xp, x, wx, None if b is None else b[: 3 * size])
        inputs = inputs.reshape(steps, batch, 3 * size)
        wh = xp.ascontiguousarray(wh.T)
        for t in range(steps):
            state, keep = xp.matmul(h, wh), saved[t]
            gate, n, hidden = keep[:, : 2 * size], keep[:, 2 * size : 3 * size], keep[:, 3 * size :]
            xp.add(inputs[t][:, : 2 * size], state[:, : 2 * size], out=gate)
            gate *= 0.5
            xp.tanh(gate, out=gate)
            gate *= 0.5
            gate += 0.5
            hidden[...] = state[:, 2 * size :]
            if b is not None:
                hidden += b[3 * size :]
            xp.multiply(gate[:, :size], hidden, out=n)
            n += inputs[t][:, 2 * size :]
            xp.tanh(n, out=n)
            h = n + gate[:, size:] * (h - n)
            hs[t] = h
        return h, None

    def backward(self, xp, ghs, gh, gc, x, h, c, wx, wh, hs, saved, cs):
        steps, batch, size = hs.shape
        r_all, z_all, n_all, hidden = (saved[..., k * size : (k + 1) * size] for k in range(4))
        by_n = (1 - z_all) * (1 - n_all * n_all)
        by_r = hidden * r_all * (1 - r_all)
        before = xp.concatenate([h[None], hs[:-1]]) if steps else hs
        by_z = (before - n_all) * z_all * (1 - z_all)
        g = xp.empty((steps, batch, 4 * size), hs.dtype)  # of r, z, n and of the state's part of n
        for t in reversed(range(steps)):
            gh = gh + ghs[t]
            step = g[t]
            gn = xp.multiply(gh, by_n[t], out=step[:, 2 * size : 3 * size])
            xp.multiply(gn, by_r[t], out=step[:, :size])
            xp.multiply(gh, by_z[t], out=step[:, size : 2 * size])
            xp.multiply(gn, r_all[t], out=step[:, 3 * size :])
            gh = gh * z_all[t]
            gh += xp.matmul(step[:, : 2 * size], wh[: 2 * size])
            gh += xp.matmul(step[:, 3 * size :], wh[2 * size :])
        of_x = xp.ascontiguousarray(g[..., : 3 * size])
        of_h = xp.concatenate([g[..., : 2 * size], g[..., 3 * size :]], 2)
        return (*_products(xp, of_x, of_h, x, h, wx, hs), gh, None, _rows(g))


CELLS = {"tanh": Plain(False), "relu": Plain(True), "lstm": Lstm(), "gru": Gru()}


def _flat(a):
    return a.reshape(a.shape[0] * a.shape[1], a.shape[2])


def _inputs(xp, x, wx, b):
    """wx x + b for all steps and samples, as a new array."""
    y = xp.matmul(_flat(x), wx.T)
    if b is not None:
        y += b
    return y


def _rows(g):
    return g.sum((0, 1))


def _products(xp, of_x, of_h, x, h, wx, hs):
    """Gradients of x, wx and wh from those before the gates, on the side of x and of h."""
    flat = _flat(of_x)
    gx = xp.matmul(flat, wx).reshape(x.shape)
    before = xp.concatenate([h[None], hs[:-1]]) if len(hs) else hs
    return gx, xp.matmul(flat.T, _flat(x)), xp.matmul(_flat(of_h).T, _flat(before))


def split_weights(weight_l0, weight, layer, direction, cell, hidden):
    """(wx, wh) of one layer and direction, as matrices."""
    w = weight_l0[direction] if layer == 0 else weight[layer - 1, direction]
    w = w.reshape(cell.gates * hidden, -1)
    return w[:, :-hidden], w[:, -hidden:]


def run(xp, cell, x, h, c, weight_l0, weight, bias, mask, scale):
    """All layers and directions.

    Args:
        mask: Which outputs of the inner layers pass, (L - 1, T, B, D * H), size 0 for all.
        scale: Factor of those that pass.
    Returns:
        y, h_n, c_n, inner outputs (L - 1, T, B, D * H) and what the cells saved for backward.
    """
    layers, directions, batch, hidden = h.shape
    steps = len(x)
    y = xp.empty((steps, batch, directions * hidden), x.dtype)
    inner = xp.empty((layers - 1, *y.shape), x.dtype)
    saved = xp.empty((layers, directions, steps, batch, cell.saved * hidden), x.dtype)
    cs = xp.empty((layers, directions, steps, batch, hidden * cell.has_cell), x.dtype)
    h_n = xp.empty(h.shape, x.dtype)
    c_n = xp.empty(h.shape if cell.has_cell else (0,), x.dtype)
    for layer in range(layers):
        out = y if layer == layers - 1 else inner[layer]
        if layer:
            x = _passed(inner, mask, scale, layer)
        for d in range(directions):
            wx, wh = split_weights(weight_l0, weight, layer, d, cell, hidden)
            hs = out[..., d * hidden : (d + 1) * hidden]
            b = None if bias is None else bias[layer, d].reshape(-1)
            last = cell.forward(
                xp,
                x[::-1] if d else x,
                h[layer, d],
                c[layer, d] if cell.has_cell else None,
                wx,
                wh,
                b,
                hs[::-1] if d else hs,
                saved[layer, d],
                cs[layer, d],
            )
            h_n[layer, d] = last[0]
            if cell.has_cell:
                c_n[layer, d] = last[1]
    return y, h_n, c_n, inner, saved, cs


def _passed(inner, mask, scale, layer):
    x = inner[layer - 1]
    return x * (mask[layer - 1] * x.dtype.type(scale)) if mask.size else x


def run_backward(
    xp, cell, gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, saved_by_run, scale, need_x
):
    """Gradients of x, h, c, weight_l0, weight and bias; None for those that are None, and for x
    where it is not wanted."""
    y, inner, mask, saved, cs = saved_by_run
    layers, directions, batch, hidden = h.shape
    gh, gc = xp.empty_like(h), xp.empty_like(h) if cell.has_cell else None
    gw0 = xp.empty_like(weight_l0)
    gw = None if weight is None else xp.empty_like(weight)
    gb = None if bias is None else xp.empty_like(bias)
    g = gy
    for layer in reversed(range(layers)):
        out = y if layer == layers - 1 else inner[layer]
        fed = _passed(inner, mask, scale, layer) if layer else x
        gx = None
        for d in range(directions):
            wx, wh = split_weights(weight_l0, weight, layer, d, cell, hidden)
            part = slice(d * hidden, (d + 1) * hidden)
            way = slice(None, None, -1 if d else 1)
            g_fed, gwx, gwh, gh0, gc0, g_bias = cell.backward(
                xp,
                g[way, :, part],
                gh_n[layer, d],
                gc_n[layer, d] if cell.has_cell else None,
                fed[way],
                h[layer, d],
                c[layer, d] if cell.has_cell else None,
                wx,
                wh,
                out[way, :, part],
                saved[layer, d],
                cs[layer, d],
            )
            gx = g_fed[way] if gx is None else gx + g_fed[way]
            gh[layer, d] = gh0
            if gc is not None:
                gc[layer, d] = gc0
            into = gw0[d] if layer == 0 else gw[layer - 1, d]
            into.reshape(cell.gates * hidden, -1)[...] = xp.concatenate([gwx, gwh], 1)
            if gb is not None:
                gb[layer, d] = g_bias.reshape(gb.shape[2:])
        if layer and mask.size:
            gx = gx * (mask[layer - 1] * gx.dtype.type(scale))
        g = gx
    return xp.ascontiguousarray(g) if need_x else None, gh, gc, gw0, gw, gb
