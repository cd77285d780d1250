// SPDX-License-Identifier: Apache-2.0
// Paths of a co-executed step that run by the plans of their blocks. run_pieces() in
// nnl/coexec/plans/blocks.py says what that means; this does the same.
#define NO_IMPORT_ARRAY
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "array_kernel.h"
#include "called.h"
#include "nnl/plan.h"

namespace nb = nanobind;
using namespace nnl;

void bind_pieces(nb::module_& m);

namespace {

using Shape = std::vector<npy_intp>;

Shape to_shape(nb::handle sizes) {
  Shape shape;
  for (nb::handle n : nb::cast<nb::sequence>(sizes)) shape.push_back(nb::cast<npy_intp>(n));
  return shape;
}

PyArrayObject* array_of(const nb::object& x) { return reinterpret_cast<PyArrayObject*>(x.ptr()); }

// A plan whose inputs and results are bound to other memory in every run.
class BlockPlan {
 public:
  // ins: Slots of what it reads, 0 for what it does not need. buffers: (slot, shape, dtype) of what
  // it computes. over: For each of these the position of what it reads whose memory it may be, or
  // -1. outs: of each number in `keeps`, whose memory it is (one of the buffers, or from
  // len(keeps) on what it reads), under which shape, None for the same, and whether it is copied.
  BlockPlan(nb::object whole, nb::object native, nb::tuple keeps, std::vector<int> ins,
            nb::list buffers, const std::vector<int>& over, nb::list outs)
      : whole_(std::move(whole)),
        native_(std::move(native)),
        plan_(nb::inst_ptr<Plan>(native_)),
        keeps_(std::move(keeps)),
        ins_(std::move(ins)) {
    for (size_t i = 0; i < buffers.size(); ++i)
      buffers_.push_back({nb::cast<int>(buffers[i][0]), to_shape(buffers[i][1]),
                          nb::borrow(buffers[i][2]), over[i]});
    for (size_t i = 0; i < outs.size(); ++i) {
      const bool same = outs[i][1].is_none();
      outs_.push_back({nb::cast<Py_ssize_t>(keeps_[i]), nb::cast<size_t>(outs[i][0]), same,
                       same ? Shape() : to_shape(outs[i][1]), nb::cast<bool>(outs[i][2])});
    }
  }

  const nb::tuple& keeps() const { return keeps_; }
  const nb::object& whole() const { return whole_; }

  bool gives(Py_ssize_t number) const {
    return std::any_of(outs_.begin(), outs_.end(),
                       [&](const Out& o) { return o.number == number; });
  }

  // Puts the results at their numbers from `made` on. spare: Whether what it reads is needed no
  // more, and has memory of its own.
  void run(const std::vector<nb::object>& bufs, const std::vector<bool>& spare, nb::object* made) {
    for (size_t i = 0; i < bufs.size(); ++i)
      if (ins_[i]) plan_->bind(ins_[i], PyArray_DATA(array_of(bufs[i])));
    std::vector<nb::object> computed(buffers_.size());
    overwrote_ = false;
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const Buffer& buffer = buffers_[b];
      const auto over = static_cast<size_t>(buffer.over);
      if (buffer.over >= 0 && spare[over] && has_shape(bufs[over], buffer)) {
        computed[b] = bufs[over];
        overwrote_ = true;
      } else {
        computed[b] =
            empty_array(buffer.shape, reinterpret_cast<PyArray_Descr*>(buffer.type.ptr()));
      }
      plan_->bind(buffers_[b].slot, PyArray_DATA(array_of(computed[b])));
    }
    {
      nb::gil_scoped_release unlock;
      plan_->run(0, plan_->size());
    }
    for (const Out& o : outs_) {
      nb::object x = o.where < outs_.size() ? computed[o.where] : bufs[o.where - outs_.size()];
      if (!o.same) x = reshaped(x, o.shape);
      if (o.copied) x = nb::steal(PyArray_NewCopy(array_of(x), NPY_CORDER));
      if (!x.is_valid()) throw nb::python_error();
      made[o.number] = std::move(x);
    }
  }

  // Whether the latest run has written over what it has read.
  bool overwrote() const { return overwrote_; }

 private:
  struct Buffer {
    int slot;
    Shape shape;
    nb::object type;
    int over;
  };
  struct Out {
    Py_ssize_t number;
    size_t where;
    bool same;
    Shape shape;
    bool copied;
  };

  static bool has_shape(const nb::object& x, const Buffer& buffer) {
    PyArrayObject* a = array_of(x);
    return PyArray_DESCR(a) == reinterpret_cast<PyArray_Descr*>(buffer.type.ptr()) &&
           PyArray_NDIM(a) == static_cast<int>(buffer.shape.size()) &&
           std::equal(buffer.shape.begin(), buffer.shape.end(), PyArray_DIMS(a));
  }

  static nb::object reshaped(const nb::object& x, Shape shape) {
    PyArray_Dims dims{shape.data(), static_cast<int>(shape.size())};
    nb::object y = nb::steal(PyArray_Newshape(array_of(x), &dims, NPY_CORDER));
    if (!y.is_valid()) throw nb::python_error();
    return y;
  }

  nb::object whole_, native_;
  Plan* plan_;
  nb::tuple keeps_;
  std::vector<int> ins_;
  std::vector<Buffer> buffers_;
  std::vector<Out> outs_;
  bool overwrote_ = false;
};

struct PiecesClass : Class {
  using Class::Class;
  Slot calls = slot("calls"), pieces = slot("pieces"), bounds = slot("bounds"),
       numbers = slot("numbers"), firsts = slot("firsts"), last = slot("last"), at = slot("at");
};

struct PieceClass : Class {
  using Class::Class;
  Slot block = slot("block"), begin = slot("begin"), end = slot("end"), numbers = slot("numbers"),
       first = slot("first");
};

struct BlockClass : Class {
  using Class::Class;
  Slot written = slot("written"), runs = slot("runs"), alone = slot("alone"), plan = slot("plan");
};

// What of nnl.coexec runs work with. Made once; it stays until the process ends.
struct Names {
  explicit Names(const nb::module_& blocks)
      : Pieces(blocks.attr("Pieces")),
        Piece(blocks.attr("Piece")),
        Block(blocks.attr("Block")),
        space(kept(blocks.attr("SPACE"))),
        read(text("read")),
        touch(text("touch")),
        plan(text("plan")) {}

  const PiecesClass Pieces;
  const PieceClass Piece;
  const BlockClass Block;
  PyObject *space, *read, *touch, *plan;
};

const Names* names;

Py_ssize_t number_in(PyObject* list, Py_ssize_t i) {
  return PyLong_AsSsize_t(PyList_GET_ITEM(list, i));
}

nb::object checked(PyObject* x) {
  if (!x) throw nb::python_error();
  return nb::steal(x);
}

// One run of a path.
class Run {
 public:
  Run(PyObject* blocks, PyObject* pieces, PyObject* given, PyObject* wanted, PyObject* values)
      : blocks_(blocks),
        pieces_(pieces),
        given_(given),
        values_(values),
        firsts_(names->Pieces.firsts.of(pieces)),
        last_(names->Pieces.last.of(pieces)),
        made_(static_cast<size_t>(PyList_GET_SIZE(last_))),
        wanted_(made_.size()) {
    nb::object all = checked(PyObject_GetIter(wanted));
    while (nb::object n = nb::steal(PyIter_Next(all.ptr())))
      wanted_[static_cast<size_t>(PyLong_AsSsize_t(n.ptr()))] = true;
  }

  Py_ssize_t all() {
    PyObject* list = names->Pieces.pieces.of(pieces_);
    Py_ssize_t by_plan = 0;
    for (position_ = 0; position_ < PyList_GET_SIZE(list); ++position_) {
      PyObject* piece = PyList_GET_ITEM(list, position_);
      begin_ = names->Piece.begin.number(piece);
      end_ = names->Piece.end.number(piece);
      first_ = names->Piece.first.number(piece);
      if (one(piece)) {
        by_plan += end_ - begin_;
        hand_out(first_, number_in(firsts_, end_));
      }
      let_go(names->Piece.numbers.of(piece));
    }
    return by_plan;
  }

 private:
  // Whether it was done by a plan.
  bool one(PyObject* piece) {
    PyObject* block = names->Piece.block.of(piece);
    if (end_ - begin_ > 1) {
      nb::object plan = plan_of(block);
      if (nb::isinstance<BlockPlan>(plan)) {
        if (run(nb::inst_ptr<BlockPlan>(plan), block, piece)) return true;
      } else if (!plan.is_none()) {
        const nb::object bufs = nb::cast(inputs(block, piece));
        const nb::object out = checked(PyObject_CallOneArg(plan.ptr(), bufs.ptr()));
        size_t i = 0;
        for (nb::handle n : plan.attr("keeps")) made(first_ + nb::cast<Py_ssize_t>(n)) = out[i++];
        return true;
      }
    }
    for (Py_ssize_t i = begin_; i < end_; ++i) call(i);
    return false;
  }

  // The plan of a block, with all results that somebody needs; None for none.
  nb::object plan_of(PyObject* block) {
    const BlockClass& Block = names->Block;
    nb::object plan = nb::borrow(Block.plan.of(block));
    const Py_ssize_t runs = Block.runs.number(block) + 1;
    Py_SETREF(Block.runs.of(block), checked(PyLong_FromSsize_t(runs)).release().ptr());
    if (runs <= Block.alone.number(block)) return plan;
    bool gives = !plan.is_none();
    nb::list needed;
    for (Py_ssize_t n = first_; n < number_in(firsts_, end_); ++n) {
      if (!is_needed(n)) continue;
      needed.append(n - first_);
      gives = gives && has(plan, n - first_);
    }
    if (gives) return plan;
    return checked(PyObject_CallMethodObjArgs(blocks_, names->plan, block, needed.ptr(), nullptr));
  }

  static bool has(const nb::object& plan, Py_ssize_t number) {
    if (nb::isinstance<BlockPlan>(plan)) return nb::inst_ptr<BlockPlan>(plan)->gives(number);
    return nb::cast<bool>(plan.attr("keeps").attr("__contains__")(number));
  }

  bool run(BlockPlan* plan, PyObject* block, PyObject* piece) {
    std::vector<nb::object> bufs = inputs(block, piece);
    PyObject* written = names->Block.written.of(block);
    std::vector<bool> spare(bufs.size());
    for (size_t i = 0; i < bufs.size(); ++i) {
      if (!PyArray_Check(bufs[i].ptr())) return false;
      spare[i] = is_spare(number_of(piece, i), bufs[i]);
      if (PyArray_IS_C_CONTIGUOUS(array_of(bufs[i]))) continue;
      if (PySet_GET_SIZE(written)) return false;
      bufs[i] = checked(PyArray_NewCopy(array_of(bufs[i]), NPY_CORDER));
    }
    try {
      plan->run(bufs, spare, made_.data() + first_);
    } catch (const std::exception&) {
      const bool as_before = !PySet_GET_SIZE(written) && !plan->overwrote();
      if (as_before) return false;  // one of its calls says more
      set_at(plan->whole().ptr());
      throw;
    }
    return true;
  }

  static Py_ssize_t number_of(PyObject* piece, size_t i) {
    PyObject* numbers = names->Piece.numbers.of(piece);
    return PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, static_cast<Py_ssize_t>(i)));
  }

  // Whether nobody else has the memory of an array, and nobody reads it any more.
  bool is_spare(Py_ssize_t number, const nb::object& buf) const {
    if (number < 0 || is_needed(number)) return false;
    const int flags = NPY_ARRAY_OWNDATA | NPY_ARRAY_CARRAY;
    return Py_REFCNT(buf.ptr()) == 2 && PyArray_CHKFLAGS(array_of(buf), flags);  // made_ and bufs
  }

  // The buffers of what a block reads and writes.
  std::vector<nb::object> inputs(PyObject* block, PyObject* piece) {
    PyObject *numbers = names->Piece.numbers.of(piece), *written = names->Block.written.of(block);
    std::vector<nb::object> bufs(static_cast<size_t>(PyTuple_GET_SIZE(numbers)));
    for (size_t i = 0; i < bufs.size(); ++i) {
      const auto at = static_cast<Py_ssize_t>(i);
      bool writes = false;
      if (PySet_GET_SIZE(written)) writes = PySet_Contains(written, nb::int_(i).ptr()) == 1;
      bufs[i] = buffer(PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, at)), writes);
    }
    return bufs;
  }

  nb::object buffer(Py_ssize_t number, bool writes) {
    if (number >= 0) return made(number);
    if (number == -1) return nb::none();
    PyObject* nd = PyList_GET_ITEM(given_, -2 - number);
    PyObject* found = PyDict_GetItemWithError(core->NdArray.bufs.of(nd), names->space);
    if (found && (!writes || renew_usual(nd, names->space))) return nb::borrow(found);
    return checked(
        PyObject_CallMethodOneArg(nd, writes ? names->touch : names->read, names->space));
  }

  // Runs one call by its own kernel.
  void call(Py_ssize_t i) {
    PyObject* bound = PyList_GET_ITEM(names->Pieces.bounds.of(pieces_), i);
    PyObject* numbers = PyList_GET_ITEM(names->Pieces.numbers.of(pieces_), i);
    PyObject* writes = core->Bound.writes.of(bound);
    set_at(PyList_GET_ITEM(names->Pieces.calls.of(pieces_), i));
    const Py_ssize_t n = PyTuple_GET_SIZE(numbers);
    std::vector<nb::object> bufs(static_cast<size_t>(n));
    std::vector<PyObject*> args(static_cast<size_t>(n) + 1);
    for (Py_ssize_t k = 0; k < n; ++k) {
      bool is_written = false;
      for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(writes); ++w)
        is_written = is_written || PyLong_AsSsize_t(PyTuple_GET_ITEM(writes, w)) == k;
      const auto at = static_cast<size_t>(k);
      bufs[at] = buffer(PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, k)), is_written);
      args[at + 1] = bufs[at].ptr();
    }
    nb::object out = checked(
        PyObject_Vectorcall(core->Bound.call.of(bound), args.data() + 1,
                            static_cast<size_t>(n) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    set_at(Py_None);
    const Py_ssize_t first = number_in(firsts_, i);
    if (core->Bound.single.on(bound)) {
      made(first) = std::move(out);
    } else {
      Py_ssize_t k = 0;
      for (nb::handle y : out) made(first + k++) = nb::borrow(y);
    }
    hand_out(first, number_in(firsts_, i + 1));
  }

  // Hands out what is wanted of the results of these numbers.
  void hand_out(Py_ssize_t begin, Py_ssize_t end) {
    for (Py_ssize_t n = begin; n < end; ++n) {
      if (!wanted_[static_cast<size_t>(n)]) continue;
      nb::object pair = checked(PyTuple_Pack(2, names->space, made(n).ptr()));
      const nb::int_ key(n);
      if (PyDict_SetItem(values_, key.ptr(), pair.ptr()) < 0) throw nb::python_error();
    }
  }

  // Lets go what nobody needs any more after a piece that has read these.
  void let_go(PyObject* numbers) {
    for (Py_ssize_t n = first_; n < number_in(firsts_, end_); ++n)
      if (number_in(last_, n) <= position_) made(n).reset();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); ++i) {
      const Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i));
      if (n >= 0 && number_in(last_, n) <= position_) made(n).reset();
    }
  }

  nb::object& made(Py_ssize_t number) { return made_[static_cast<size_t>(number)]; }
  bool is_needed(Py_ssize_t n) const {
    return wanted_[static_cast<size_t>(n)] || number_in(last_, n) > position_;
  }
  void set_at(PyObject* what) { Py_SETREF(names->Pieces.at.of(pieces_), Py_NewRef(what)); }

  PyObject *const blocks_, *const pieces_, *const given_, *const values_;
  PyObject *const firsts_, *const last_;
  std::vector<nb::object> made_;
  std::vector<bool> wanted_;
  Py_ssize_t position_ = 0, begin_ = 0, end_ = 0, first_ = 0;
};

}  // namespace

void bind_pieces(nb::module_& m) {
  nb::class_<BlockPlan>(m, "BlockPlan")
      .def(nb::init<nb::object, nb::object, nb::tuple, std::vector<int>, nb::list,
                    const std::vector<int>&, nb::list>())
      .def_prop_ro("keeps", &BlockPlan::keeps);
  m.def("run_pieces",
        [](nb::object blocks, nb::object pieces, nb::list given, nb::set wanted, nb::dict values) {
          if (!names) names = new Names(nb::module_::import_("nnl.coexec.plans.blocks"));
          return Run(blocks.ptr(), pieces.ptr(), given.ptr(), wanted.ptr(), values.ptr()).all();
        });
}
