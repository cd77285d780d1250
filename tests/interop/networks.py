# SPDX-License-Identifier: Apache-2.0
"""Ten small networks as text that runs in nnl and in NNabla alike.

Each defines `build()`: inputs by name, losses by name, and the prefix of the parameters that each
loss trains.
"""

LENET = """
def build():
    x, t = nn.Variable((4, 1, 12, 12)), nn.Variable((4, 1))
    h = F.max_pooling(F.relu(PF.convolution(x, 4, (3, 3), name='c1')), (2, 2))
    h = F.max_pooling(F.relu(PF.convolution(h, 6, (3, 3), name='c2')), (2, 2))
    h = F.relu(PF.affine(h, 10, name='a1'))
    y = PF.affine(h, 5, name='a2')
    return {'x': x, 't': t}, {'loss': (F.mean(F.softmax_cross_entropy(y, t)), '')}
"""

RESNET18 = """
def unit(h, maps, name, stride):
    with nn.parameter_scope(name):
        y = PF.convolution(h, maps, (3, 3), pad=(1, 1), stride=(stride,) * 2, with_bias=False,
                           name='c1')
        y = F.relu(PF.batch_normalization(y, name='b1'))
        y = PF.convolution(y, maps, (3, 3), pad=(1, 1), with_bias=False, name='c2')
        y = PF.batch_normalization(y, name='b2')
        if h.shape[1] != maps:
            h = PF.convolution(h, maps, (1, 1), stride=(stride,) * 2, with_bias=False, name='s')
            h = PF.batch_normalization(h, name='bs')
    return F.relu(h + y)

def build():
    x, t = nn.Variable((4, 3, 16, 16)), nn.Variable((4, 1))
    h = F.relu(PF.batch_normalization(PF.convolution(x, 4, (3, 3), pad=(1, 1), with_bias=False)))
    for stage, maps in enumerate((4, 6, 8, 10)):
        for block in range(2):
            h = unit(h, maps, 's%d_%d' % (stage, block), 2 if stage and not block else 1)
    y = PF.affine(F.global_average_pooling(h), 5)
    return {'x': x, 't': t}, {'loss': (F.mean(F.softmax_cross_entropy(y, t)), '')}
"""

RESNEXT = """
def build():
    x, t = nn.Variable((4, 3, 8, 8)), nn.Variable((4, 1))
    h = PF.convolution(x, 8, (3, 3), pad=(1, 1), name='first')
    for i in range(2):
        with nn.parameter_scope('u%d' % i):
            y = F.relu(PF.batch_normalization(PF.convolution(h, 4, (1, 1), name='c1'), name='b1'))
            y = PF.convolution(y, 4, (3, 3), pad=(1, 1), group=2, with_bias=False, name='c2')
            y = F.relu(PF.batch_normalization(y, name='b2'))
            y = PF.batch_normalization(PF.convolution(y, 8, (1, 1), name='c3'), name='b3')
            h = F.relu(h + y)
    y = PF.affine(F.average_pooling(h, (8, 8)), 5)
    return {'x': x, 't': t}, {'loss': (F.mean(F.softmax_cross_entropy(y, t)), '')}
"""

MOBILENET_V3 = """
def hard_swish(h):
    return h * F.relu6(h + 3.0) * (1.0 / 6.0)

def build():
    x, t = nn.Variable((4, 3, 8, 8)), nn.Variable((4, 1))
    h = hard_swish(PF.batch_normalization(PF.convolution(x, 6, (3, 3), pad=(1, 1), name='first')))
    for i in range(2):
        with nn.parameter_scope('u%d' % i):
            y = F.relu(PF.batch_normalization(PF.convolution(h, 8, (1, 1), name='up'), name='b1'))
            y = PF.depthwise_convolution(y, (3, 3), pad=(1, 1), with_bias=False, name='dw')
            y = hard_swish(PF.batch_normalization(y, name='b2'))
            s = F.relu(PF.convolution(F.average_pooling(y, (8, 8)), 4, (1, 1), name='s1'))
            s = F.hard_sigmoid(PF.convolution(s, 8, (1, 1), name='s2'))
            y = PF.batch_normalization(PF.convolution(y * s, 6, (1, 1), name='down'), name='b3')
            h = h + y
    y = PF.affine(F.dropout(F.average_pooling(h, (8, 8)), 0.0), 5)
    return {'x': x, 't': t}, {'loss': (F.mean(F.softmax_cross_entropy(y, t)), '')}
"""

LSTM_LANGUAGE_MODEL = """
def build():
    x, t = nn.Variable((4, 5)), nn.Variable((4, 5))
    words = F.split(PF.embed(x, 7, 6, name='words'), 1)
    targets = F.split(t, 1)
    h, c, losses = F.constant(0, (4, 8)), F.constant(0, (4, 8)), []
    for word, target in zip(words, targets):
        h, c = PF.lstm_cell(word, h, c, 8, name='lstm')
        y = PF.affine(h, 7, name='next')
        losses.append(F.mean(F.softmax_cross_entropy(y, F.reshape(target, (4, 1)))))
    return {'x': x, 't': t}, {'loss': (F.add_n(*losses), '')}
"""

TRANSFORMER = """
def heads(h, name):
    y = PF.affine(h, 8, base_axis=2, name=name)
    return F.transpose(F.reshape(y, (4, 5, 2, 4)), (0, 2, 1, 3))

def build():
    x, t = nn.Variable((4, 5)), nn.Variable((4, 1))
    h = PF.embed(x, 7, 8, name='words') + F.broadcast(
        F.reshape(PF.embed(F.arange(0, 5), 5, 8, name='places'), (1, 5, 8)), (4, 5, 8))
    for i in range(2):
        with nn.parameter_scope('block%d' % i):
            n = PF.layer_normalization(h, batch_axis=(0, 1), name='n1')
            q, k, v = heads(n, 'q'), heads(n, 'k'), heads(n, 'v')
            a = F.softmax(F.batch_matmul(q, k, transpose_b=True) * 0.5, axis=3)
            a = F.reshape(F.transpose(F.batch_matmul(a, v), (0, 2, 1, 3)), (4, 5, 8))
            h = h + PF.affine(a, 8, base_axis=2, name='out')
            n = PF.layer_normalization(h, batch_axis=(0, 1), name='n2')
            h = h + PF.affine(F.gelu(PF.affine(n, 12, base_axis=2, name='f1')), 8, base_axis=2,
                              name='f2')
    y = PF.affine(F.mean(h, 1), 5, name='last')
    return {'x': x, 't': t}, {'loss': (F.mean(F.softmax_cross_entropy(y, t)), '')}
"""

DCGAN = """
def generator(z):
    with nn.parameter_scope('gen'):
        h = F.reshape(PF.affine(z, 8 * 2 * 2, name='a'), (4, 8, 2, 2))
        h = F.relu(PF.batch_normalization(h, name='b1'))
        h = PF.deconvolution(h, 4, (4, 4), pad=(1, 1), stride=(2, 2), with_bias=False, name='d1')
        h = F.relu(PF.batch_normalization(h, name='b2'))
        return F.tanh(PF.deconvolution(h, 1, (4, 4), pad=(1, 1), stride=(2, 2), name='d2'))

def discriminator(x):
    with nn.parameter_scope('dis'):
        h = F.leaky_relu(PF.convolution(x, 4, (4, 4), pad=(1, 1), stride=(2, 2), name='c1'), 0.2)
        h = PF.convolution(h, 6, (4, 4), pad=(1, 1), stride=(2, 2), with_bias=False, name='c2')
        h = F.leaky_relu(PF.batch_normalization(h, name='b'), 0.2)
        return PF.affine(h, 1, name='a')

def build():
    x, z = nn.Variable((4, 1, 8, 8)), nn.Variable((4, 3))
    y = generator(z)
    fake, real = discriminator(y), discriminator(x)
    one, zero = F.constant(1, (4, 1)), F.constant(0, (4, 1))
    d = F.mean(F.sigmoid_cross_entropy(real, one)) + F.mean(F.sigmoid_cross_entropy(fake, zero))
    g = F.mean(F.sigmoid_cross_entropy(fake, one))
    return {'x': x, 'z': z}, {'for_dis': (d, 'dis'), 'for_gen': (g, 'gen')}
"""

UNET = """
def twice(h, maps, name):
    with nn.parameter_scope(name):
        h = PF.convolution(h, maps, (3, 3), pad=(1, 1), name='c1')
        h = F.relu(PF.batch_normalization(h, name='b'))
        return F.elu(PF.convolution(h, maps, (3, 3), pad=(1, 1), name='c2'))

def build():
    x, t = nn.Variable((4, 1, 8, 8)), nn.Variable((4, 1, 8, 8))
    a = twice(x, 3, 'e1')
    b = twice(F.max_pooling(a, (2, 2)), 4, 'e2')
    c = twice(F.average_pooling(b, (2, 2)), 5, 'e3')
    h = PF.deconvolution(c, 4, (2, 2), stride=(2, 2), name='up2')
    h = twice(F.concatenate(h, b, axis=1), 4, 'd2')
    h = F.interpolate(h, scale=(2, 2), mode='linear')
    h = twice(F.concatenate(h, a, axis=1), 3, 'd1')
    y = PF.convolution(h, 1, (1, 1), name='last')
    return {'x': x, 't': t}, {'loss': (F.mean(F.squared_error(y, t)), '')}
"""

GAN = """
def layers(h, name, sizes):
    with nn.parameter_scope(name):
        for i, n in enumerate(sizes):
            h = PF.affine(h, n, name='a%d' % i)
            h = F.leaky_relu(h, 0.1) if i + 1 < len(sizes) else h
        return h

def build():
    x, z = nn.Variable((4, 2)), nn.Variable((4, 3))
    fake = layers(z, 'gen', (6, 2))
    d = F.mean(F.softplus(layers(fake, 'dis', (6, 1))))
    d = d + F.mean(F.softplus(-layers(x, 'dis', (6, 1))))
    g = F.mean(F.softplus(-layers(fake, 'dis', (6, 1))))
    return {'x': x, 'z': z}, {'for_dis': (d, 'dis'), 'for_gen': (g, 'gen')}
"""

PARAMETRIC_FUNCTIONS = """
def build():
    x, s, v = nn.Variable((4, 4, 6, 6)), nn.Variable((4, 3, 6)), nn.Variable((4, 6))
    i = nn.Variable((4, 3))
    z = F.constant(0, (4, 4))
    k = dict(kernel=(3, 3))
    q = dict(quantize_w=True, quantize_b=True)
    made = {
        'affine': PF.affine(v, 3), 'convolution': PF.convolution(x, 3, **k),
        'depthwise_convolution': PF.depthwise_convolution(x, **k),
        'deconvolution': PF.deconvolution(x, 3, **k),
        'depthwise_deconvolution': PF.depthwise_deconvolution(x, **k),
        'rnn': PF.rnn(F.transpose(s, (1, 0, 2)), F.constant(0, (1, 1, 4, 4)))[0],
        'lstm': PF.lstm(F.transpose(s, (1, 0, 2)), F.constant(0, (1, 1, 4, 4)),
                        F.constant(0, (1, 1, 4, 4)))[0],
        'gru': PF.gru(F.transpose(s, (1, 0, 2)), F.constant(0, (1, 1, 4, 4)))[0],
        'lstm_cell': PF.lstm_cell(v, z, z, 4)[0],
        'embed': PF.embed(i, 5, 3),
        'prelu': PF.prelu(x), 'batch_normalization': PF.batch_normalization(x, name='bn'),
        'fused_batch_normalization': PF.fused_batch_normalization(x, x, name='fbn'),
        'layer_normalization': PF.layer_normalization(x),
        'instance_normalization': PF.instance_normalization(x),
        'group_normalization': PF.group_normalization(x, num_groups=2),
        'mean_subtraction': PF.mean_subtraction(x),
        'weight_normalization': PF.convolution(x, 3, apply_w=PF.weight_normalization, name='wn',
                                               **k),
        'spectral_norm': PF.affine(v, 3, apply_w=lambda w: PF.spectral_norm(w, itr=1), name='sn'),
        'svd_affine': PF.svd_affine(v, 4, 2),
        'svd_convolution': PF.svd_convolution(x, 3, (3, 3), 2),
        'cpd3_convolution': PF.cpd3_convolution(x, 3, (3, 3), 2),
        'binary_connect_affine': PF.binary_connect_affine(v, 3),
        'binary_connect_convolution': PF.binary_connect_convolution(x, 3, **k),
        'binary_weight_affine': PF.binary_weight_affine(v, 3),
        'binary_weight_convolution': PF.binary_weight_convolution(x, 3, **k),
        'fixed_point_quantized_affine': PF.fixed_point_quantized_affine(v, 3),
        'fixed_point_quantized_convolution': PF.fixed_point_quantized_convolution(x, 3, **k),
        'pow2_quantized_affine': PF.pow2_quantized_affine(v, 3),
        'pow2_quantized_convolution': PF.pow2_quantized_convolution(x, 3, **k),
        'pruned_affine': PF.pruned_affine(v, 3),
        'pruned_convolution': PF.pruned_convolution(x, 3, **k),
        'min_max_quantize': PF.min_max_quantize(x),
        'min_max_quantized_affine': PF.min_max_quantized_affine(v, 3),
        'min_max_quantized_convolution': PF.min_max_quantized_convolution(x, 3, **k),
        'multi_head_attention': PF.multi_head_attention(*[F.transpose(s, (1, 0, 2))] * 3,
                                                        num_heads=2)[0],
        'transformer_decode': PF.transformer_decode(*[F.transpose(s, (1, 0, 2))] * 2, 6, 2, 8,
                                                    dropout=0),
        'deformable_convolution': PF.deformable_convolution(
            x, 3, (3, 3), F.constant(0.3, (4, 18, 6, 6)), pad=(1, 1)),
        'transformer_encode': PF.transformer_encode(F.transpose(s, (1, 0, 2)), 6, 2, 8, dropout=0),
    }
    loss = F.add_n(*[F.mean(F.tanh(y) ** 2.0) for y in made.values()])
    return {'x': x, 's': s, 'v': v, 'i': i}, {'loss': (loss, '')}
"""

# name -> text, solver, whether the batch size can be left open
NETWORKS = {
    "lenet": (LENET, "Momentum(0.05)", True),
    "resnet18": (RESNET18, "Momentum(0.01)", True),
    "resnext": (RESNEXT, "Nesterov(0.01)", True),
    "mobilenet_v3": (MOBILENET_V3, "RMSprop(0.001)", True),
    "lstm_language_model": (LSTM_LANGUAGE_MODEL, "Adam(0.01)", False),
    "transformer": (TRANSFORMER, "AdamW(0.001)", False),
    "dcgan": (DCGAN, "Adam(0.001, beta1=0.5)", False),
    "unet": (UNET, "Adam(0.005)", True),
    "gan": (GAN, "Adam(0.005)", True),
    "parametric_functions": (PARAMETRIC_FUNCTIONS, "Sgd(0.01)", False),
}
INTEGERS = {"t": 5, "i": 5}  # inputs that are classes or indices, with their number
