# SPDX-License-Identifier: Apache-2.0
"""Networks of sequences: recurrent ones, attention, words and sound."""

SCRIPTS = {}

SCRIPTS["lstm that carries its state through unwritten arrays"] = """
def lstm(x, h, c, n):
    hxs = F.concatenate(x, h, axis=1)
    first = lambda shape: uniform(3, *shape)
    w1 = nn.parameter.get_parameter_or_create("w", (hxs.shape[1], n * 4), first)
    gates = F.affine(hxs, w1)
    c_ = F.sigmoid(gates[:, n:2 * n]) * c + F.sigmoid(gates[:, :n]) * F.tanh(gates[:, 2 * n:3 * n])
    return F.sigmoid(gates[:, 3 * n:]) * F.tanh(c_), c_

n, steps = 5, 3
x, t = nn.Variable((2, steps, 4)), nn.Variable((2, steps, 1))
h0, c0 = nn.Variable((2, n)), nn.Variable((2, n))
h, c, losses = h0, c0, []
for k in range(steps):
    h, c = lstm(x[:, k], h, c, n)
    losses.append(F.mean(F.softmax_cross_entropy(PF.affine(h, 3, name="out"), t[:, k])))
loss = F.mean(F.stack(*losses))
h.persistent = c.persistent = True
solver = S.Sgd(0.1)
solver.set_parameters(nn.get_parameters())
curve = []
for i in range(6):
    h0.d, c0.d = h.d.copy(), c.d.copy()
    x.d, t.d = uniform(i, *x.shape), integers(i, 3, *t.shape)
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.clip_grad_by_norm(1.0)
    solver.update()
    curve.append(float(loss.d))
outputs["loss"] = np.array(curve)
h0.data, c0.data = h.data, c.data
loss.forward()
outputs["carried"] = loss.d.copy()
"""

SCRIPTS["seq2seq with attention"] = """
B, T, V, H = 2, 4, 7, 6
src, dst, label = nn.Variable((B, T)), nn.Variable((B, T)), nn.Variable((B, T))
mask = F.sign(label)
mask.need_grad = False
with nn.parameter_scope("encoder"):
    e = PF.embed(src, V, H)
    cell = PF.LSTMCell(B, H)
    hs = [cell(e[:, k]) for k in range(T)]
keys = F.stack(*hs, axis=1)
h, c = cell.h, cell.c
with nn.parameter_scope("decoder"):
    e = PF.embed(dst, V, H)
    cell = PF.LSTMCell(B, H, h=h, c=c)
    losses = []
    for k in range(T):
        h = cell(e[:, k])
        a = F.softmax(F.batch_matmul(keys, F.reshape(h, (B, H, 1))), axis=1)
        context = F.reshape(F.batch_matmul(keys, a, transpose_a=True), (B, H))
        y = PF.affine(F.concatenate(h, context, axis=1), V, name="out")
        ce = F.softmax_cross_entropy(y, F.reshape(label[:, k], (B, 1)))
        losses.append(ce * F.reshape(mask[:, k], (B, 1)))
loss = F.sum(F.add_n(*losses)) / F.sum(mask)
solver = S.Momentum(0.1)
solver.set_parameters(nn.get_parameters())
def feed(step):
    src.d, dst.d, label.d = (integers(3 * step + k, V, B, T) for k in range(3))
train(loss, solver, feed)
"""

SCRIPTS["word embedding"] = """
V, D = 12, 6
word, context, negative = nn.Variable((5,)), nn.Variable((5,)), nn.Variable((5, 3))
with nn.parameter_scope("in"):
    e = PF.embed(word, V, D)
with nn.parameter_scope("out"):
    p, n = PF.embed(context, V, D), PF.embed(negative, V, D)
score = F.sum(e * p, axis=1)
noise = F.reshape(F.batch_matmul(n, F.reshape(e, (5, D, 1))), (5, 3))
loss = -F.mean(F.log(F.sigmoid(score) + 1e-7))
loss -= F.mean(F.sum(F.log(F.sigmoid(-noise) + 1e-7), axis=1))
solver = S.Adagrad(0.1)
solver.set_parameters(nn.get_parameters())
def feed(step):
    word.d, context.d, negative.d = (integers(step + k, V, *v.shape) for k, v in
                                     ((0, word), (30, context), (60, negative)))
train(loss, solver, feed)
vectors = nn.get_parameters()["in/embed/W"].d
outputs["nearest"] = vectors @ vectors[3] / np.linalg.norm(vectors, axis=1)
"""

SCRIPTS["wavenet"] = """
x, t = nn.Variable((2, 8, 32)), nn.Variable((2, 1, 32))
h = PF.convolution(x, 8, (2,), pad=(1,), name="in")[:, :, :32]
skips = []
for d in (1, 2, 4):
    with nn.parameter_scope("d%d" % d):
        a = PF.convolution(h, 8, (2,), pad=(d,), dilation=(d,), name="a")[:, :, :32]
        b = PF.convolution(h, 8, (2,), pad=(d,), dilation=(d,), name="b")[:, :, :32]
        g = F.tanh(a) * F.sigmoid(b)
        skips.append(PF.convolution(g, 8, (1,), name="skip"))
        h = h + PF.convolution(g, 8, (1,), name="res")
y = PF.convolution(F.relu(sum(skips)), 8, (1,), name="out")
loss = F.mean(F.softmax_cross_entropy(y, t, axis=1))
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    t.d = integers(step, 8, 2, 1, 32)
    x.d = np.eye(8)[t.d[:, 0].astype(int)].transpose(0, 2, 1)
train(loss, solver, feed)
"""

SCRIPTS["transformer and warm-up"] = """
from nnabla.utils.learning_rate_scheduler import CosineScheduler, LinearWarmupScheduler
B, T, V, H = 2, 5, 9, 8
tokens, label = nn.Variable((B, T)), nn.Variable((B, T, 1))
first = lambda shape: uniform(8, *shape) * 0.1
place = nn.parameter.get_parameter_or_create("place", (1, T, H), first)
h = F.transpose(PF.embed(tokens, V, H) + place, (1, 0, 2))
mask = F.constant(0, (T, T)) + nn.Variable.from_numpy_array(np.triu(np.full((T, T), -1e9), 1))
mask.need_grad = False
for k in range(2):
    with nn.parameter_scope("layer%d" % k):
        a, _ = PF.multi_head_attention(h, h, h, 2, additive_mask=mask)
        with nn.parameter_scope("n1"):
            h = PF.layer_normalization(h + a, batch_axis=(0, 1))
        f = PF.affine(F.gelu(PF.affine(h, 16, base_axis=2, name="f1")), H, base_axis=2, name="f2")
        with nn.parameter_scope("n2"):
            h = PF.layer_normalization(h + f, batch_axis=(0, 1))
y = PF.affine(F.transpose(h, (1, 0, 2)), V, base_axis=2, name="out")
loss = F.mean(F.softmax_cross_entropy(y, label))
solver = S.AdamW(1e-2)
solver.set_parameters(nn.get_parameters())
schedule = LinearWarmupScheduler(CosineScheduler(1e-2, 6), warmup_iter=2)
def feed(step):
    tokens.d, label.d = integers(step, V, B, T), integers(30 + step, V, B, T, 1)
    solver.set_learning_rate(schedule.get_learning_rate(step))
train(loss, solver, feed, decay=1e-3)
"""
