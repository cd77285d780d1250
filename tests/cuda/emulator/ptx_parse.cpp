// SPDX-License-Identifier: Apache-2.0
// Instructions: operands find their places.
#include <algorithm>

#include "ptx_parser.h"

namespace emu {

namespace {

void refused(Warp& w, const Instr& i, Mask m) {
  w.fault(i, unsigned(std::countr_zero(m)), "this interpreter cannot do it");
}
void undefined(Warp& w, const Instr& i, Mask m) {
  w.fault(i, unsigned(std::countr_zero(m)), "it calls what is not in the text");
}

void clock_of(Warp& w, const Instr& i, Mask m) {
  static u64 ticks = 0;
  ticks += 32;
  each(m, [&](unsigned l) {
    if (i.wide & 1)
      w.at<u64>(i.o[0])[l] = ticks;
    else
      w.at<u32>(i.o[0])[l] = u32(ticks);
  });
}

}  // namespace

void copy_passed(Warp& w, const Instr& i, Mask m);  // in ptx_run.cpp

u32 Parser::special(const std::string& name, char shape) {
  const auto [found, is_new] = specials_.try_emplace(name + shape, 0);
  if (!is_new) return found->second;
  static const std::pair<std::string_view, Special> names[] = {
      {"%tid", Special::kTid},
      {"%ntid", Special::kNtid},
      {"%ctaid", Special::kCtaid},
      {"%nctaid", Special::kNctaid},
      {"%laneid", Special::kLane},
      {"%warpid", Special::kWarp},
      {"%nwarpid", Special::kNwarp},
      {"%lanemask_eq", Special::kEq},
      {"%lanemask_le", Special::kLe},
      {"%lanemask_lt", Special::kLt},
      {"%lanemask_ge", Special::kGe},
      {"%lanemask_gt", Special::kGt},
      {"%smid", Special::kZero},
      {"%nsmid", Special::kOne},
      {"%gridid", Special::kZero},
      {"%dynamic_smem_size", Special::kDynamicBytes},
      {"%total_smem_size", Special::kTotalBytes}};
  std::string base = name;
  u8 axis = 0;
  if (name.size() > 2 && name[name.size() - 2] == '.') {
    axis = u8(name.back() - 'x');
    base.resize(name.size() - 2);
  }
  for (const auto& [n, what] : names) {
    if (n != base || axis > 2) continue;
    found->second = place(shape);
    text_->specials.push_back({what, axis, shape == 'w', found->second});
    return found->second;
  }
  specials_.erase(name + shape);
  refuse("the register " + name + " is not known");
}

u32 Parser::dynamic_shared(char shape) {
  const auto [found, is_new] = specials_.try_emplace(std::string("dynamic shared ") + shape, 0);
  if (is_new) {
    found->second = place(shape);
    text_->specials.push_back({Special::kDynamicShared, 0, shape == 'w', found->second});
  }
  return found->second;
}

// ---- reading ----

Value Parser::operand() {
  Value v;
  v.negated = accept("!");
  if (accept("{")) {
    v.kind = Value::kVector;
    do v.parts.push_back(operand());
    while (accept(","));
    expect("}");
    return v;
  }
  if (peek().is("[")) return address();
  if (peek().kind == Token::kReal32 || peek().kind == Token::kReal64 || peek().is("-")) {
    const bool minus = accept("-");
    const Token& t = take();
    v.kind = t.kind == Token::kReal32   ? Value::kReal32
             : t.kind == Token::kReal64 ? Value::kReal64
                                        : Value::kNumber;
    v.bits = t.bits;
    if (minus)
      v.bits = v.kind == Value::kReal32   ? v.bits ^ 0x80000000
               : v.kind == Value::kReal64 ? v.bits ^ 1ull << 63
                                          : 0 - v.bits;
    return v;
  }
  if (peek().kind == Token::kNumber) {
    v.kind = Value::kNumber;
    v.bits = number();
    return v;
  }
  const std::string name = word();
  if (name == "_") return v;
  if (name == "WARP_SZ") {
    v.kind = Value::kNumber, v.bits = kLanes;
    return v;
  }
  if (const Symbol* s = find(name)) {
    v.kind = s->kind == Symbol::kRegister ? Value::kRegister : Value::kAddress;
    v.symbol = *s, v.has_base = true;
    if (v.kind == Value::kAddress) v = resolved(v, name);
    if (v.kind == Value::kAddress && accept("+")) v.bits += number();
    return v;
  }
  if (!name.starts_with('%')) refuse("there is no " + name);
  v.kind = Value::kSpecial;
  v.special = name;
  return v;
}

// A shared variable of the module gets its place in the kernel that uses it first.
Value Parser::resolved(Value v, const std::string& name) {
  if (v.symbol.kind != Symbol::kShared || v.symbol.value != ~0ull) return v;
  const auto [found, is_new] = shared_of_module_.try_emplace(name, 0);
  if (is_new) {
    const std::size_t align = v.symbol.align;
    found->second = (*shared_ + align - 1) / align * align;
    *shared_ = found->second + v.symbol.bytes;
    if (!kernel_) shared_of_functions_[name] = found->second;
  }
  v.symbol.value = found->second;
  return v;
}

Value Parser::address() {
  expect("[");
  Value v;
  v.kind = Value::kAddress;
  if (peek().kind == Token::kWord) {
    const std::string name = word();
    const Symbol* s = find(name);
    if (!s) refuse("there is no " + name);
    v.symbol = *s, v.has_base = true;
    v = resolved(v, name);
    if (accept("+"))
      v.bits = number();
    else if (peek().is("-"))
      v.bits = number();
  } else {
    v.bits = number();
  }
  expect("]");
  return v;
}

std::vector<Value> Parser::operands() {
  std::vector<Value> r;
  while (!peek().is(";") && peek().kind != Token::kEnd) {
    r.push_back(operand());
    if (accept("|")) {
      Value second = operand();
      second.parts.clear();
      r.back().parts.push_back(second);
    }
    if (!accept(",")) break;
  }
  expect(";");
  return r;
}

// ---- binding ----

u32 Parser::positive(const Value& v) {  // the place of a predicate that is not negated
  if (!v.negated) return v.symbol.slot;
  Instr i;
  Name n{"not", {}, {Type::kPred}};
  i.run = find_bits(n, i).run;
  i.o[0] = place('p'), i.o[1] = v.symbol.slot;
  i.line = peek().line;
  emit(i);
  return i.o[0];
}

u32 Parser::place_of(const Value& v, char shape, Instr& i, unsigned k, Type type) {
  const auto mark = [&](char s) {
    if (s == 'w') i.wide = u16(i.wide | 1u << k);
    return s;
  };
  if (shape == 'x') shape = v.kind == Value::kRegister ? v.symbol.shape : is_wide(type) ? 'w' : 'n';
  mark(shape);
  switch (v.kind) {
    case Value::kNothing:
      return place(shape);  // what nobody reads
    case Value::kSpecial:
      return special(v.special, shape);
    case Value::kNumber:
      return constant(shape, v.bits);
    case Value::kReal32:
      return constant(shape, shape == 'w'
                                 ? std::bit_cast<u64>(double(std::bit_cast<float>(u32(v.bits))))
                                 : v.bits);
    case Value::kReal64:
      return constant(
          shape, shape == 'w' ? v.bits : std::bit_cast<u32>(float(std::bit_cast<double>(v.bits))));
    case Value::kRegister:
      if (v.symbol.shape != shape)
        refuse("operand " + std::to_string(k + 1) + " has not the size of the instruction", i.line);
      return shape == 'p' ? positive(v) : v.symbol.slot;
    case Value::kAddress:
      if (v.symbol.kind == Symbol::kFunction) refuse("an address of a function", i.line);
      if (v.symbol.kind == Symbol::kDynamic) {
        if (v.bits) refuse("a sum with an address that is known at launch", i.line);
        return dynamic_shared(shape);
      }
      return constant(shape, v.symbol.value + v.bits);
    default:
      refuse("a vector as operand " + std::to_string(k + 1), i.line);
  }
}

void Parser::bind_address(Instr& i, const Value& v) {
  i.offset = s64(v.bits);
  i.wide |= 0x100;
  i.o[8] = constant('w', 0);
  if (!v.has_base) return;
  const Symbol& s = v.symbol;
  // Parameters of device functions, and of calls, are in local memory.
  if (i.space == Space::kParam &&
      (s.kind == Symbol::kLocal || (s.kind == Symbol::kRegister && !kernel_)))
    i.space = Space::kLocal;
  if (s.kind == Symbol::kRegister) {
    i.o[8] = s.slot;
    if (s.shape == 'n') i.wide = u16(i.wide & ~0x100);
  } else if (s.kind == Symbol::kDynamic) {
    i.o[8] = dynamic_shared('w');
  } else {
    i.offset += s64(s.value);
  }
}

void Parser::bind(const Name& n, Instr& i, const std::string& shape, std::vector<Value>& values) {
  std::size_t at = 0;  // of values
  unsigned k = 0;      // of operands
  const auto next = [&]() -> Value& {
    if (at >= values.size()) refuse("an operand is missing", i.line);
    return values[at++];
  };
  const auto type_of = [&](unsigned operand) {
    return n.base == "cvt" ? n.type(operand) : n.type();
  };
  for (std::size_t c = 0; c < shape.size(); ++c) {
    switch (shape[c]) {
      case '|': {
        const Value& before = values[at - 1];
        const char s = shape[++c];
        i.o[k] = before.parts.empty() ? place(s) : place_of(before.parts[0], s, i, k, n.type());
        ++k;
        break;
      }
      case '_':
        i.o[k] = place(shape[c + 2]), ++k;
        break;
      case 'a':
        bind_address(i, next());
        break;
      case 'v': {
        Value& v = next();
        if (v.kind != Value::kVector) v.parts = {v};
        i.count = u8(v.parts.size());
        if (i.count > 8) refuse("a vector of more than 8", i.line);
        for (const Value& part : v.parts) i.o[k] = place_of(part, 'x', i, k, n.type()), ++k;
        break;
      }
      case 'b': {  // number and count of a barrier; d and p are elsewhere
        i.o[2] = place_of(next(), 'n', i, 2, Type::kU32);
        const bool counted = values.size() - at > std::size_t(c + 1 < shape.size());
        i.count = counted ? 2 : 1;
        if (counted) i.o[3] = place_of(next(), 'n', i, 3, Type::kU32);
        k = 1;
        break;
      }
      default: {
        const Value& v = next();
        if (k > 8) refuse("too many operands", i.line);
        i.o[k] = place_of(v, shape[c], i, k, type_of(k)), ++k;
      }
    }
  }
  if (at != values.size()) refuse("more operands than it takes", i.line);
  if (i.flow == Flow::kMeet) i.members = i.o[k - 1];
}

// mov with vectors, and from what changes.
bool Parser::move(const Name& n, Instr& i, std::vector<Value>& values) {
  if (n.base != "mov" || values.size() != 2) return false;
  const bool pack = values[1].kind == Value::kVector, unpack = values[0].kind == Value::kVector;
  if (pack || unpack) {
    i.type = n.type();
    i.run = mover(pack);
    std::vector<Value> parts = values[pack].parts;
    const std::size_t unit = bytes_of(i.type) / parts.size();
    if (!unit) refuse("more parts than bytes", i.line);
    i.count = u8(parts.size());
    unsigned k = 0;
    const char part = unit == 8 ? 'w' : 'n', whole = is_wide(i.type) ? 'w' : 'n';
    if (pack) i.o[k] = place_of(values[0], whole, i, k, i.type), ++k;
    for (const Value& p : parts) i.o[k] = place_of(p, part, i, k, i.type), ++k;
    if (unpack) i.o[k] = place_of(values[1], whole, i, k, i.type);
    emit(i);
    return true;
  }
  if (values[1].kind != Value::kSpecial) return false;
  const std::string& s = values[1].special;
  if (!s.starts_with("%clock") && !s.starts_with("%globaltimer")) return false;
  i.o[0] = place_of(values[0], 'x', i, 0, n.type());
  i.run = &clock_of;
  emit(i);
  return true;
}

// ---- statements ----

void Parser::statement() {
  if (peek().kind == Token::kWord && peek(1).is(":")) {
    const std::string name = word();
    take();
    if (accept(".branchtargets")) {
      do table_labels_[name].push_back(word());
      while (accept(","));
      expect(";");
    } else if (accept(".callprototype")) {
      skip_statement();
    } else {
      labels_[name] = u32(text_->code.size());
    }
    return;
  }
  if (!peek().text.starts_with('.')) return instruction();
  const std::string w = word();
  if (w == ".reg")
    registers();
  else if (w == ".local" || w == ".shared" || w == ".param")
    variable(w, false);
  else if (w == ".loc")
    for (const u32 line = peek().line; peek().line == line;) take();
  else
    skip_statement();
}

u32 Parser::label(const std::string& name) {
  label_names_.push_back(name);
  return u32(label_names_.size() - 1);
}

void Parser::instruction() {
  Instr i;
  i.line = peek().line;
  if (accept("@")) {
    i.flip = accept("!") ? ~0u : 0;
    const std::string name = word();
    const Symbol* p = find(name);
    if (!p || p->shape != 'p') refuse("there is no predicate " + name);
    i.guard = p->slot;
  }
  const std::string opcode = word();
  const Name n = name_of(opcode);
  if (control(n, i)) return;
  std::vector<Value> values = operands();
  if (move(n, i, values)) return;
  const bool wide = n.has("b128") || n.has("s128") || n.has("u128");
  for (const auto find_ : {find_integer, find_bits, find_float, find_half, find_compare,
                           find_convert, find_memory, find_atomic, find_warp, find_barrier}) {
    if (wide) break;
    Instr made = i;
    const Found found = find_(n, made);
    if (!found.run) continue;
    made.run = found.run;
    bind(n, made, found.shape, values);
    emit(made);
    return;
  }
  i.run = &refused;
  emit(i);
}

bool Parser::control(const Name& n, Instr& i) {
  if (n.base == "bra") {
    i.flow = Flow::kBranch;
    i.target = label(word());
  } else if (n.base == "brx") {
    i.flow = Flow::kTable;
    Value index = operand();
    i.o[0] = place_of(index, 'n', i, 0, Type::kU32);
    expect(",");
    i.target = u32(table_names_.size());
    table_names_.push_back(word());
  } else if (n.base == "ret") {
    i.flow = kernel_ ? Flow::kExit : Flow::kReturn;
  } else if (n.base == "exit") {
    i.flow = Flow::kExit;
  } else if (n.base == "call") {
    call(i);
    return true;
  } else {
    return false;
  }
  expect(";");
  emit(i);
  return true;
}

// call (result), name, (arguments): values are copied to where the function has its own.
void Parser::call(Instr i) {
  const auto passed = [&] {
    std::vector<Symbol> r;
    expect("(");
    while (!accept(")")) {
      const std::string name = word();
      const Symbol* s = find(name);
      if (!s || s->kind != Symbol::kLocal) refuse(name + " is passed in a register");
      r.push_back(*s);
      accept(",");
    }
    return r;
  };
  std::vector<Symbol> results, arguments;
  if (peek().is("(")) {
    results = passed();
    expect(",");
  }
  const std::string name = word();
  if (accept(",")) {
    if (peek().is("(")) arguments = passed();
    if (accept(",")) word();  // a prototype
  }
  expect(";");
  const Symbol* f = find(name);
  if (!f) refuse("there is no function " + name);
  if (f->kind != Symbol::kFunction) {
    i.run = &refused;
    return emit(i);
  }
  i.callee = u16(f->value);
  const auto copy = [&](const Symbol& s, std::size_t k, bool back) {
    Instr c = i;
    c.run = &copy_passed;
    c.mode = u8(k), c.sat = back;
    c.offset = s64(s.value), c.members = u32(s.bytes);
    calls_.push_back(text_->code.size());
    emit(c);
  };
  for (std::size_t k = 0; k < arguments.size(); ++k) copy(arguments[k], k, false);
  Instr c = i;
  c.flow = Flow::kCall;
  calls_.push_back(text_->code.size());
  emit(c);
  for (std::size_t k = 0; k < results.size(); ++k) copy(results[k], k, true);
}

void fail_assertion(Warp& w, const Instr& i, Mask m);  // in ptx_run.cpp

void Parser::resolve_calls() {
  for (const std::size_t at : calls_) {
    Instr& i = text_->code[at];
    const Function& f = functions_[i.callee];
    if (i.flow == Flow::kCall) {
      i.target = f.entry;
      if (f.defined) continue;
      i.flow = Flow::kNext;
      i.run = f.name == "__assertfail" && f.arguments.size() > 3 ? &fail_assertion : &undefined;
      for (unsigned k = 0; k < 4 && k < f.arguments.size(); ++k) i.o[k] = u32(f.arguments[k].first);
    } else {
      const auto& places = i.sat ? f.results : f.arguments;
      if (i.mode >= places.size() || places[i.mode].second != i.members)
        refuse(f.name + " takes other arguments", i.line);
      i.target = u32(places[i.mode].first);
    }
  }
}

}  // namespace emu
