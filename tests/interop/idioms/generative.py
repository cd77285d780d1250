# SPDX-License-Identifier: Apache-2.0
"""Networks that generate: adversarial ones, autoencoders, flows."""

SCRIPTS = {}

SCRIPTS["gan that monitors before the first forward"] = """
from nnabla.monitor import Monitor, MonitorSeries
import tempfile
def generator(z, maxh=16, test=False):
    with nn.parameter_scope("gen"):
        h = F.reshape(PF.affine(z, maxh * 4 * 4, with_bias=False), (z.shape[0], maxh, 4, 4))
        h = F.relu(PF.batch_normalization(h, batch_stat=not test))
        with nn.parameter_scope("up"):
            h = PF.deconvolution(h, maxh / 2, (4, 4), pad=(1, 1), stride=(2, 2), with_bias=False)
            h = F.relu(PF.batch_normalization(h, batch_stat=not test))
        return F.tanh(PF.convolution(h, 1, (3, 3), pad=(1, 1), name="out"))

def discriminator(x, maxh=16, test=False):
    with nn.parameter_scope("dis"):
        h = PF.convolution(x, maxh / 4, (3, 3), pad=(1, 1), stride=(2, 2), name="a")
        h = PF.convolution(F.leaky_relu(h, 0.2), maxh / 2, (3, 3), name="b", with_bias=False)
        return PF.affine(F.leaky_relu(PF.batch_normalization(h, batch_stat=not test), 0.2), 1)

z, x = nn.Variable([4, 6, 1, 1]), nn.Variable([4, 1, 8, 8])
fake = generator(z)
fake.persistent = True
loss_gen = F.mean(F.sigmoid_cross_entropy(discriminator(fake), F.constant(1, (4, 1))))
fake_dis = fake.get_unlinked_variable(need_grad=True)
fake_dis.need_grad = True
pred_fake = discriminator(fake_dis)
loss_dis = F.mean(F.sigmoid_cross_entropy(pred_fake, F.constant(0, pred_fake.shape)))
pred_real = discriminator(x)
loss_dis += F.mean(F.sigmoid_cross_entropy(pred_real, F.constant(1, pred_real.shape)))
solvers = []
for scope in ("gen", "dis"):
    solvers.append(S.Adam(2e-3, beta1=0.5))
    with nn.parameter_scope(scope):
        solvers[-1].set_parameters(nn.get_parameters())
monitor = MonitorSeries("loss", Monitor(tempfile.mkdtemp()), interval=1, verbose=False)
curve = []
for i in range(6):
    monitor.add(i, loss_gen.d.copy())
    curve += [float(loss_gen.d), float(loss_dis.d)]
    x.d, z.d = uniform(i, *x.shape), uniform(100 + i, *z.shape)
    solvers[0].zero_grad()
    loss_gen.forward(clear_no_need_grad=True)
    loss_gen.backward(clear_buffer=True)
    solvers[0].weight_decay(1e-4)
    solvers[0].update()
    solvers[1].zero_grad()
    loss_dis.forward(clear_no_need_grad=True)
    loss_dis.backward(clear_buffer=True)
    solvers[1].weight_decay(1e-4)
    solvers[1].update()
outputs["loss"] = np.array(curve)
"""

SCRIPTS["vq-vae"] = """
hidden, K = 8, 6
def residual(x, scope):
    with nn.parameter_scope(scope):
        h = PF.convolution(F.relu(x), hidden / 2, (3, 3), pad=(1, 1), name="a")
        return x + PF.convolution(F.relu(h), hidden, (1, 1), name="b")
x = nn.Variable((2, 1, 8, 8))
h = PF.convolution(x, hidden, (4, 4), stride=(2, 2), pad=(1, 1), name="down")
z = residual(h, "res")
first = lambda shape: uniform(4, *shape) / K
w = nn.parameter.get_parameter_or_create("codebook", (K, hidden), first)
flat = F.reshape(F.transpose(z, (0, 2, 3, 1)), (-1, hidden))
d2 = F.sum(flat ** 2, axis=1, keepdims=True) + F.reshape(F.sum(w ** 2, axis=1), (1, -1))
d2 = d2 - 2 * F.affine(flat, F.transpose(w, (1, 0)))
index = F.min(d2, axis=1, only_index=True)
index.need_grad = False
q = F.transpose(F.reshape(F.embed(index, w), (2, 4, 4, hidden)), (0, 3, 1, 2))
commit = F.mean(F.squared_error(F.identity(q).apply(need_grad=False), z))
book = F.mean(F.squared_error(q, F.identity(z).apply(need_grad=False)))
straight = z + (q - z).apply(need_grad=False)
y = PF.deconvolution(residual(straight, "up"), 1, (4, 4), stride=(2, 2), pad=(1, 1), name="out")
loss = F.mean(F.squared_error(y, x)) + book + 0.25 * commit
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x.d = uniform(step, *x.shape)
train(loss, solver, feed)
index.forward()
outputs["index"] = index.d.astype(np.int64)
"""

SCRIPTS["wasserstein gan with a gradient penalty"] = """
def critic(x):
    with nn.parameter_scope("critic"):
        return PF.affine(F.leaky_relu(PF.affine(x, 16, name="a")), 1, name="b")
z, real, eps = nn.Variable((6, 3)), nn.Variable((6, 4)), nn.Variable((6, 1))
with nn.parameter_scope("gen"):
    fake = PF.affine(F.relu(PF.affine(z, 16, name="a")), 4, name="b")
fake_c = fake.get_unlinked_variable(need_grad=False)
mix = eps * real + (1 - eps) * fake_c
mix.need_grad = True
(g,) = nn.grad([critic(mix)], [mix])
penalty = F.mean((F.sum(g ** 2, axis=1) ** 0.5 - 1.0) ** 2)
loss_c = F.mean(critic(fake_c)) - F.mean(critic(real)) + 10 * penalty
loss_g = -F.mean(critic(fake))
solvers = {}
for scope in ("critic", "gen"):
    with nn.parameter_scope(scope):
        solvers[scope] = S.Adam(1e-2, beta1=0.5, beta2=0.9)
        solvers[scope].set_parameters(nn.get_parameters())
curve = []
for i in range(6):
    z.d, real.d, eps.d = uniform(i, 6, 3), uniform(20 + i, 6, 4), np.abs(uniform(40 + i, 6, 1))
    fake.forward()
    loss_c.forward(clear_no_need_grad=True)
    solvers["critic"].zero_grad()
    loss_c.backward(clear_buffer=True)
    solvers["critic"].update()
    loss_g.forward(clear_no_need_grad=True)
    solvers["gen"].zero_grad()
    loss_g.backward(clear_buffer=True)
    solvers["gen"].update()
    curve += [float(loss_c.d), float(loss_g.d)]
outputs["loss"] = np.array(curve)
"""

SCRIPTS["averaged generator and style mixing"] = """
def generator(z, noise):
    w = PF.affine(F.leaky_relu(PF.affine(z, 8, name="m1"), 0.2), 8, name="m2")
    first = lambda shape: uniform(6, *shape)
    h = nn.parameter.get_parameter_or_create("const", (1, 4, 4, 4), first)
    h = F.broadcast(h, (z.shape[0],) + h.shape[1:])
    style = F.reshape(PF.affine(w, 8, name="style"), (z.shape[0], 8, 1, 1))
    h = F.interpolate(h, scale=(2, 2), mode="linear", align_corners=False)
    h = PF.convolution(h, 4, (3, 3), pad=(1, 1), name="conv", with_bias=False) + 0.1 * noise
    h = PF.instance_normalization(F.leaky_relu(h, 0.2))
    return PF.convolution(h * (style[:, :4] + 1) + style[:, 4:], 1, (1, 1), name="rgb")
z, noise, x = nn.Variable((3, 5)), nn.Variable((3, 1, 8, 8)), nn.Variable((3, 1, 8, 8))
with nn.parameter_scope("gen"):
    loss = F.mean(F.squared_error(generator(z, noise), x))
    params = nn.get_parameters()
with nn.parameter_scope("ema"):
    averaged = generator(z, noise)
    ema = nn.get_parameters(grad_only=False)
for k, p in params.items():
    ema[k].data.copy_from(p.data)
solver = S.Adam(1e-2, 0.0, 0.99)
solver.set_parameters(params)
curve = []
for i in range(6):
    z.d, noise.d, x.d = uniform(i, 3, 5), uniform(20 + i, 3, 1, 8, 8), uniform(40 + i, 3, 1, 8, 8)
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    for k, p in params.items():
        ema[k].data.copy_from(0.5 * ema[k].data + 0.5 * p.data)
    curve.append(float(loss.d))
averaged.forward(clear_buffer=True)
outputs["loss"], outputs["averaged"] = np.array(curve), averaged.d.copy()
"""

SCRIPTS["glow"] = """
def coupling(x, name):
    a, b = x[:, :2], x[:, 2:]
    with nn.parameter_scope(name):
        h = F.relu(PF.convolution(a, 8, (3, 3), pad=(1, 1), name="h"))
        zero = I.ConstantInitializer(0.1)
        h = PF.convolution(h, 4, (3, 3), pad=(1, 1), w_init=zero, name="o")
    s, m = F.sigmoid(h[:, :2] + 2.0), h[:, 2:]
    return F.concatenate(a, s * (b + m), axis=1), F.sum(F.log(s), axis=(1, 2, 3))
x = nn.Variable((2, 4, 4, 4))
z, logdet = x, 0
for k in range(2):
    first = lambda shape: np.eye(4) + 0.1 * uniform(k, *shape)
    W = nn.parameter.get_parameter_or_create("W%d" % k, (4, 4), first)
    z = F.convolution(z, F.reshape(W, (4, 4, 1, 1)))
    logdet = logdet + 16 * F.log(F.abs(F.batch_det(F.reshape(W, (1, 4, 4)))))
    z, ld = coupling(z, "c%d" % k)
    logdet = logdet + ld
loss = F.mean(0.5 * F.sum(z ** 2, axis=(1, 2, 3)) - logdet) / 64
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x.d = uniform(step, *x.shape)
train(loss, solver, feed)
"""

SCRIPTS["two domains with a history of images"] = """
def generator(x, name):
    with nn.parameter_scope(name):
        h = PF.convolution(F.pad(x, (1, 1, 1, 1), "reflect"), 4, (3, 3))
        h = F.relu(PF.instance_normalization(h))
        return F.tanh(PF.convolution(h, 1, (3, 3), pad=(1, 1), name="out"))
def critic(x, name):
    with nn.parameter_scope(name):
        h = F.leaky_relu(PF.convolution(x, 4, (3, 3), name="a"), 0.2)
        return PF.convolution(h, 1, (3, 3), name="b")
a, b = nn.Variable((1, 1, 8, 8)), nn.Variable((1, 1, 8, 8))
fake_b, fake_a = generator(a, "gen/ab"), generator(b, "gen/ba")
cycle = F.mean(F.absolute_error(generator(fake_b, "gen/ba"), a))
cycle += F.mean(F.absolute_error(generator(fake_a, "gen/ab"), b))
pa, pb = critic(fake_a, "dis/a"), critic(fake_b, "dis/b")
loss_gen = F.mean((pa - 1) ** 2) + F.mean((pb - 1) ** 2) + 10 * cycle
old_a, old_b = nn.Variable((1, 1, 8, 8)), nn.Variable((1, 1, 8, 8))
loss_dis = sum(
    F.mean((critic(real, name) - 1) ** 2) + F.mean(critic(old, name) ** 2)
    for real, old, name in ((a, old_a, "dis/a"), (b, old_b, "dis/b"))
)
fake_a.persistent = fake_b.persistent = True
solvers = []
for scope in ("gen", "dis"):
    with nn.parameter_scope(scope):
        solvers.append(S.Adam(2e-3, beta1=0.5))
        solvers[-1].set_parameters(nn.get_parameters())
history, curve = [], []
for i in range(4):
    a.d, b.d = uniform(i, 1, 1, 8, 8), uniform(20 + i, 1, 1, 8, 8)
    for loss, solver in ((loss_gen, solvers[0]), (loss_dis, solvers[1])):
        if loss is loss_dis:
            history.append((fake_a.d.copy(), fake_b.d.copy()))
            old_a.d, old_b.d = history[len(history) // 2]
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        curve.append(float(loss.d))
outputs["loss"] = np.array(curve)
"""
