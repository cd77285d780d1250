# SPDX-License-Identifier: Apache-2.0
"""Ways of training: adversarial directions, learning to learn, by reward, by search."""

SCRIPTS = {}

SCRIPTS["virtual adversarial training"] = """
def mlp(x):
    h = F.relu(PF.affine(x, 16, name="a"))
    return PF.affine(h, 3, name="b")

def normalized(d):
    return d / F.broadcast(F.sum(d ** 2, axis=1, keepdims=True) ** 0.5 + 1e-8, d.shape)

xl, tl, xu = nn.Variable((4, 5)), nn.Variable((4, 1)), nn.Variable((6, 5))
noise = nn.Variable((6, 5))
loss_l = F.mean(F.softmax_cross_entropy(mlp(xl), tl))
y1 = mlp(xu).apply(need_grad=False)
y1.need_grad = False
r = F.identity(normalized(noise)).apply(persistent=True)
r.need_grad = True
y2 = mlp(xu + 0.5 * r)
y3 = F.identity(y1)
y3.need_grad = False
loss_r = F.mean(F.kl_multinomial(F.softmax(y3), F.softmax(y2)))
direction = nn.Variable((6, 5))
y4 = mlp(xu + direction)
loss_u = F.mean(F.kl_multinomial(F.softmax(y3), F.softmax(y4)))
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
curve = []
noise.need_grad = True
for i in range(6):
    xl.d, tl.d = uniform(i, 4, 5), integers(i, 3, 4, 1)
    loss_l.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss_l.backward(clear_buffer=True)
    solver.update()
    xu.d, noise.d = uniform(50 + i, 6, 5), uniform(90 + i, 6, 5)
    loss_r.forward(clear_no_need_grad=True)
    loss_r.backward(clear_buffer=True)
    g = r.g.copy()
    direction.d = 2.0 * g / (np.sqrt((g ** 2).sum(1, keepdims=True)) + 1e-8)
    loss_u.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss_u.backward(clear_buffer=True)
    solver.update()
    curve += [float(loss_l.d), float(loss_r.d), float(loss_u.d)]
outputs["loss"] = np.array(curve)
"""

SCRIPTS["meta learning"] = """
def net(x, params):
    h = F.relu(F.affine(x, params["w1"], params["b1"]))
    return F.affine(h, params["w2"], params["b2"])
shapes = {"w1": (3, 8), "b1": (8,), "w2": (8, 1), "b2": (1,)}
create = nn.parameter.get_parameter_or_create
make = lambda shape: uniform(len(shape) + shape[0], *shape) * 0.5
weights = {k: create(k, s, make, True) for k, s in shapes.items()}
xs, ys = [nn.Variable((4, 3)) for _ in range(4)], [nn.Variable((4, 1)) for _ in range(4)]
losses = []
for task in range(2):
    inner = F.mean(F.squared_error(net(xs[2 * task], weights), ys[2 * task]))
    grads = nn.grad([inner], weights.values())
    fast = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads)}
    losses.append(F.mean(F.squared_error(net(xs[2 * task + 1], fast), ys[2 * task + 1])))
loss = sum(losses) / len(losses)
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    for k in range(4):
        xs[k].d, ys[k].d = uniform(9 * step + k, 4, 3), uniform(77 + 9 * step + k, 4, 1)
train(loss, solver, feed)
"""

SCRIPTS["deep q network with a target copied by arrays"] = """
def q_net(s):
    h = F.relu(PF.affine(s, 16, name="a"))
    return PF.affine(h, 3, name="b")
s, a, r, s2, end = (nn.Variable(shape) for shape in ((8, 4), (8, 1), (8, 1), (8, 4), (8, 1)))
with nn.parameter_scope("main"):
    q = q_net(s)
    q.persistent = True
    params = nn.get_parameters()
with nn.parameter_scope("target"):
    q2 = q_net(s2)
    q2.need_grad = False
    target = nn.get_parameters()
def copy():
    for key, value in params.items():
        target[key].data.copy_from(value.data)
def soft(tau):
    for key, value in params.items():
        target[key].data = tau * value.data + (1 - tau) * target[key].data
copy()
qa = F.sum(q * F.one_hot(a, (3,)), axis=1, keepdims=True)
goal = r + 0.9 * (1.0 - end) * F.max(q2, axis=1, keepdims=True)
goal.need_grad = False
loss = F.mean(F.huber_loss(qa, goal))
solver = S.RMSprop(1e-2)
solver.set_parameters(params)
curve = []
for i in range(8):
    s.d, s2.d, r.d = uniform(i, 8, 4), uniform(30 + i, 8, 4), uniform(60 + i, 8, 1)
    a.d, end.d = integers(i, 3, 8, 1), integers(i, 2, 8, 1)
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    for p in params.values():
        p.grad.data = np.clip(p.grad.data, -1, 1)
    solver.update()
    if i == 3:
        copy()
    elif i > 3:
        soft(0.5)
    curve.append(float(loss.d))
outputs["loss"] = np.array(curve)
outputs["target"] = target["a/affine/W"].d.copy()
"""

SCRIPTS["actor, critic and arithmetic of arrays"] = """
obs, act, gain = nn.Variable((6, 4)), nn.Variable((6, 1)), nn.Variable((6, 1))
with nn.parameter_scope("actor"):
    logits = PF.affine(F.tanh(PF.affine(obs, 8, name="h")), 3, name="out")
with nn.parameter_scope("critic"):
    value = PF.affine(F.tanh(PF.affine(obs, 8, name="h")), 1, name="out")
log_p = F.log(F.softmax(logits) + 1e-10)
entropy = -F.mean(F.sum(F.softmax(logits) * log_p, axis=1))
advantage = (gain - value).apply(need_grad=False)
picked = F.sum(log_p * F.one_hot(act, (3,)), axis=1, keepdims=True)
stopped = advantage.get_unlinked_variable(need_grad=False)
loss_pi = -F.mean(picked * stopped) - 0.01 * entropy
loss_v = 0.5 * F.mean(F.squared_error(value, gain))
loss = loss_pi + loss_v
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
mean = nn.NdArray.from_numpy_array(np.zeros(4, np.float32))
curve = []
for i in range(6):
    batch = nn.NdArray.from_numpy_array(uniform(i, 6, 4))
    mean = 0.9 * mean + 0.1 * F.mean(batch, axis=0)
    obs.data = batch - F.reshape(mean, (1, 4))
    act.d, gain.d = integers(i, 3, 6, 1), uniform(20 + i, 6, 1)
    nn.forward_all([advantage, loss], clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    curve.append(float(loss.d))
outputs["loss"], outputs["mean"] = np.array(curve), mean.data.copy()
"""

SCRIPTS["architecture search with masked inputs"] = """
x, t = nn.Variable((4, 6)), nn.Variable((4, 1))
ops = []
for k in range(3):
    with nn.parameter_scope("op%d" % k):
        ops.append((F.tanh, F.relu, F.sigmoid)[k](PF.affine(x, 6)))
mixed = F.add_n(*ops)
loss = F.mean(F.softmax_cross_entropy(PF.affine(mixed, 3, name="out"), t))
solver = S.Sgd(0.1)
solver.set_parameters(nn.get_parameters())
curve = []
for i in range(6):
    x.d, t.d = uniform(i, 4, 6), integers(i, 3, 4, 1)
    mixed.parent.set_active_input_mask([k == i % 3 for k in range(3)])
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    curve.append(float(loss.d))
outputs["loss"] = np.array(curve)
"""

SCRIPTS["define by run with a module"] = """
class Net(nn.Module):
    def __init__(self, n):
        self.n = n
    def call(self, x):
        h = F.relu(PF.affine(x, self.n * 2, name="a"))
        return PF.affine(h, self.n, name="b")
net, names = Net(3), []
nn.set_auto_forward(True)
curve = []
solver = S.Sgd(0.1)
for i in range(6):
    x = nn.Variable.from_numpy_array(uniform(i, 4, 5))
    t = nn.Variable.from_numpy_array(integers(i, 3, 4, 1))
    y = net(x)
    loss = F.mean(F.softmax_cross_entropy(y, t))
    if i == 0:
        solver.set_parameters(net.get_parameters())
        loss.visit(lambda f: names.append(f.name))
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    curve.append(float(loss.d))
nn.set_auto_forward(False)
outputs["loss"] = np.array(curve)
outputs["names"] = np.array(names)
"""
