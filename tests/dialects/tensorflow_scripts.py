# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  what follows is as scripts are written
"""Scripts of TensorFlow 1, what sessions do: each leaves arrays in `out`."""

SCRIPTS = {
    "layers that are called twice": """
x = tf.constant(np.sin(np.arange(96.0)).reshape(2, 4, 4, 3), tf.float32)
start = tf.constant_initializer(0.1)
conv = tf.layers.Conv2D(3, 3, padding="same", activation=tf.nn.relu, kernel_initializer=start)
norm, dense = tf.layers.BatchNormalization(), tf.layers.Dense(2, kernel_initializer=start, name="d")
y = conv(conv(x))
y = norm(tf.layers.MaxPooling2D(2, 2)(y), training=True)
z = dense(tf.layers.Flatten()(y))
loss = tf.reduce_sum(z * z)
s.run(tf.global_variables_initializer())
out = [*s.run([y, z, *tf.gradients(loss, tf.trainable_variables())])]
out.append([len(l.variables) for l in (conv, norm, dense)] + [len(norm.trainable_variables)])
out.append([len(v.name) for v in tf.global_variables()])
""",
    "metrics": """
t, x = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int64, [None])
found = [tf.metrics.accuracy(t, x), tf.metrics.mean(x, [1.0, 0.0, 3.0]), tf.metrics.precision(t, x), tf.metrics.recall(t, x)]
y = tf.cast(x, tf.float32)
found += [tf.metrics.mean_squared_error(tf.to_float(t), y), tf.metrics.mean_absolute_error(tf.to_float(t), y)]
s.run(tf.local_variables_initializer())
out = [s.run([f[0] for f in found])]
for a, b in (([1, 0, 1], [1, 1, 0]), ([0, 0, 1], [0, 0, 1])):
    out.append(s.run([f[1] for f in found], {t: a, x: b}))
    out.append(s.run([f[0] for f in found]))
out = sum(out, [])
""",
    "lengths of another type": """
cell = tf.nn.rnn_cell.BasicRNNCell(2)
with tf.variable_scope("r", initializer=tf.constant_initializer(0.3)):
    y, state = tf.nn.dynamic_rnn(cell, np.sin(np.arange(24.0)).reshape(2, 4, 3).astype("f"), tf.constant([2.0, 4.0]), dtype=tf.float32)
s.run(tf.global_variables_initializer())
out = s.run([y, state])
""",
    "data of arrays": """
x = tf.placeholder(tf.float32, [None, 2])
d = tf.data.Dataset.from_tensor_slices((x, np.arange(6)))
d = d.map(lambda a, n: (a * 2, tf.one_hot(n, 3))).repeat(2).batch(4)
it = d.make_initializable_iterator()
a, b = it.get_next()
out = [d.output_shapes[1].as_list()[1:]]
s.run(it.initializer, {x: np.arange(12.0).reshape(6, 2)})
try:
    while True:
        out += s.run([a, b, tf.reduce_sum(a)])
except tf.errors.OutOfRangeError:
    out.append(len(out))
""",
    "data of generators": """
def rows():
    for i in range(1, 8):
        yield [i] * i, {"n": i}
d = tf.data.Dataset.from_generator(rows, (tf.int32, {"n": tf.float32}), (tf.TensorShape([None]), {"n": []}))
d = d.filter(lambda x, n: n["n"] > 2.0).padded_batch(3, ([None], {"n": []}), (-1, {"n": 0.5}))
it = d.make_one_shot_iterator().get_next()
out = []
for _ in range(2):
    x, n = s.run(it)
    out += [x, n["n"]]
""",
    "data of data": """
D = tf.data.Dataset
one, two = D.range(3), D.range(10, 20, 2)
both = D.zip((one.concatenate(two), two.take(-1).skip(2).cache().repeat(2)))
many = D.range(2, 5).flat_map(lambda n: D.from_tensors(n).repeat(n)).shard(2, 1)
far = tf.data.Iterator.from_structure(one.output_types, one.output_shapes)
n, first, second = far.get_next(), far.make_initializer(one), far.make_initializer(two)
handle = tf.placeholder(tf.string, [])
m = tf.data.Iterator.from_string_handle(handle, one.output_types, one.output_shapes).get_next()
text = s.run(two.make_one_shot_iterator().string_handle())
out = [s.run(m, {handle: text}) for _ in range(2)]
for op in (first, second, first):
    s.run(op)
    out += [s.run(n), s.run(n)]
for d in (both.batch(6), many.batch(4, drop_remainder=True), D.range(9).shuffle(9).batch(9).map(tf.reduce_sum)):
    out += np.reshape(s.run(d.make_one_shot_iterator().get_next()), (-1, 1)).tolist()
""",
    "py_func": """
x = tf.placeholder(tf.float32, [2])
y, n = tf.py_func(lambda a, b: (a + b, np.int64(len(a))), [x * 2, tf.constant([1.0, 5.0])], [tf.float32, tf.int64])
y.set_shape([2])
out = s.run([y * x, n, tf.gradients(y * x, x)[0]], {x: [3.0, 4.0]})
""",
    "queues": """
q = tf.FIFOQueue(20, [tf.float32, tf.int32], [[2], []])
put = q.enqueue_many([np.arange(8.0).reshape(4, 2), np.arange(4)])
one, many = q.dequeue(), q.dequeue_many(2)
s.run(put)
s.run(q.enqueue([[9.0, 9.0], 9]))
out = [*s.run(one), s.run(q.size()), *s.run(many)]
runner = tf.train.QueueRunner(q, [put])
coord = tf.train.Coordinator()
threads = runner.create_threads(s, coord, start=True)
out += [s.run(one)[1] for _ in range(2)]
coord.request_stop()
out.append(coord.should_stop())
""",
    "batches of files": """
import os, tempfile
folder = tempfile.mkdtemp()
path = os.path.join(folder, "x.csv")
with open(path, "w") as file:
    file.write("a,b,c\\n1,2.5,p\\n3,,q\\n5,0.5,r\\n")
files = tf.train.string_input_producer([path], shuffle=False)
_, line = tf.TextLineReader(skip_header_lines=1).read(files)
n, x, t = tf.decode_csv(line, [[0], [9.0], [""]])
batch = tf.train.batch([n, x, tf.decode_raw(t, tf.uint8)], 2, shapes=[[], [], [1]])
part = tf.train.slice_input_producer([np.arange(4.0), np.arange(8).reshape(4, 2)], shuffle=False, num_epochs=1)
last = tf.train.batch(part, 3, allow_smaller_final_batch=True)
mixed = tf.train.shuffle_batch([tf.train.range_input_producer(6, shuffle=False).dequeue()], 6, 12, 0)
s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
coord = tf.train.Coordinator()
threads = tf.train.start_queue_runners(s, coord)
out = [v for _ in range(2) for v in s.run(batch)] + [v for _ in range(2) for v in s.run(last)]
out += [np.shape(s.run(mixed)), s.run(tf.string_to_number(["1.5", "2"]))]
try:
    s.run(last)
except tf.errors.OutOfRangeError:
    out.append(1)
coord.request_stop()
coord.join(threads)
""",
    "sessions with hooks": """
import glob, tempfile
folder = tempfile.mkdtemp()
out = []
class Hook(tf.train.SessionRunHook):
    def begin(self):
        out.append(1)
    def before_run(self, context):
        return tf.train.SessionRunArgs({"w": loss}, {x: 2.0})
    def after_run(self, context, values):
        out.append(values.results["w"])
    def end(self, session):
        out.append(session.run(w))
for last in (4, 7):
    with tf.Graph().as_default():
        step, x = tf.train.get_or_create_global_step(), tf.placeholder(tf.float32, [])
        w = tf.get_variable("w", initializer=1.0)
        loss = w * w * x
        op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        hooks = [Hook(), tf.train.StopAtStepHook(last_step=last), tf.train.NanTensorHook(w)]
        with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=3) as session:
            while not session.should_stop():
                session.run(op)
        out += sorted(int(f.split("-")[-1].split(".")[0]) for f in glob.glob(folder + "/*.index"))
with tf.Graph().as_default():
    n = tf.data.Dataset.range(3).make_one_shot_iterator().get_next()
    with tf.train.MonitoredSession() as session:
        while not session.should_stop():
            out.append(session.run(n))
out.append(-1)
""",
    "control_dependencies": """
v = tf.Variable([1.0, 2.0])
with tf.control_dependencies([v.assign_add([1.0, 1.0])]):
    late = tf.identity(v) * 10.0
s.run(tf.global_variables_initializer())
out = [s.run(late), s.run(v), s.run(v.assign(v * 3.0)), s.run(tf.assign_sub(v, [1.0, 0.0]))]
""",
    "scatter_update and scatter_add": """
v = tf.Variable(np.arange(6.0).reshape(3, 2), dtype=tf.float32)
s.run(v.initializer)
out = [s.run(tf.scatter_update(v, [0, 2], [[9.0, 9.0], [8.0, 8.0]]))]
out.append(s.run(tf.scatter_add(v, [1, 1], [[1.0, 1.0], [2.0, 2.0]])))
""",
    "a branch that assigns": """
v, p = tf.Variable(1.0), tf.placeholder(tf.bool, [])
c = tf.cond(p, lambda: tf.assign(v, 5.0), lambda: v + 0.0)
s.run(v.initializer)
out = [s.run(c, {p: False}), s.run(v), s.run(c, {p: True}), s.run(v)]
""",
    "a value decides the branch": """
v = tf.Variable(1.0)
c = tf.cond(v > 2.0, lambda: tf.assign_add(v, 10.0), lambda: tf.assign_add(v, 1.0))
s.run(v.initializer)
out = [s.run(c), s.run(c), s.run(c)]
""",
    "moving averages": """
v, n = tf.Variable([1.0, 5.0]), tf.Variable(0, trainable=False)
ema = tf.train.ExponentialMovingAverage(0.9, n)
loss = tf.reduce_sum(v * v)
other = tf.train.ExponentialMovingAverage(0.5)
with tf.control_dependencies([v.assign_add([1.0, -1.0]), n.assign_add(1)]):
    op = ema.apply([v])
more = other.apply([loss])
s.run(tf.global_variables_initializer())
out = []
for _ in range(3):
    s.run(op)
    s.run(more)
    out += s.run([ema.average(v), other.average(loss)])
""",
    "clipped gradients": """
w = tf.Variable([3.0, -4.0])
opt = tf.train.GradientDescentOptimizer(tf.train.exponential_decay(1.0, tf.train.get_or_create_global_step(), 2, 0.5))
pairs = opt.compute_gradients(tf.reduce_sum(w * w))
op = opt.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs], tf.train.get_global_step())
s.run(tf.global_variables_initializer())
out = []
for _ in range(4):
    s.run(op)
    out += s.run([w, tf.train.get_global_step()])
""",
    "batch normalization learns its averages": """
x, t = tf.placeholder(tf.float32, [None, 3, 3, 2]), tf.placeholder(tf.bool, [])
y = tf.layers.batch_normalization(x, training=t, momentum=0.5)
z = tf.layers.batch_normalization(x[:, 0, 0], training=True, momentum=0.5)
ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
s.run(tf.global_variables_initializer())
a = np.sin(np.arange(72.0)).reshape(4, 3, 3, 2) * 3 + 1
out = s.run([y, z, ops], {x: a, t: True})[:2]
out += s.run(tf.global_variables()) + [s.run(y, {x: a, t: False})]
""",
    "shared variables": """
def net(x):
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        return x * tf.get_variable("w", [2], initializer=tf.constant_initializer([2.0, 3.0]))
x = tf.placeholder(tf.float32, [None, 2])
y = net(net(x))
s.run(tf.global_variables_initializer())
out = [s.run(y, {x: [[1.0, 1.0]]}), len(tf.trainable_variables())]
with tf.variable_scope("a"), tf.variable_scope("b", initializer=tf.ones_initializer()):
    v = tf.get_variable("w", [2, 1])
s.run(v.initializer)
out += [s.run(v), [ord(c) for c in v.name + tf.add(v, v, name="sum").name]]
""",
    "a loop that values end": """
x = tf.placeholder(tf.float32, [])
n, y = tf.while_loop(lambda n, y: y < 100.0, lambda n, y: (n + 1, y * 2.0), [0, x])
out = s.run([n, y], {x: 3.0}) + s.run([n, y], {x: 60.0})
""",
    "what is computed may be fed": """
x = tf.placeholder(tf.float32, [2])
y = x * 2.0
z = tf.placeholder_with_default(y + 1.0, [2])
out = [s.run(z * 1.0, {y: [5.0, 6.0]}), s.run(z * 1.0, {z: [1.0, 1.0]}), s.run(z * 1.0, {x: [1.0, 2.0]})]
""",
}
