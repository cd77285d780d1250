// SPDX-License-Identifier: Apache-2.0
// Variables, registers and functions of a text.
#include <algorithm>

#include "ptx_parser.h"

namespace emu {
namespace {

std::size_t rounded_up(std::size_t n, std::size_t align) { return (n + align - 1) / align * align; }

}  // namespace

bool Parser::accept(std::string_view t) {
  if (!peek().is(t)) return false;
  take();
  return true;
}

void Parser::expect(std::string_view t) {
  if (!accept(t)) refuse("\"" + std::string(t) + "\" is missing before \"" + peek().text + "\"");
}

std::string Parser::word() {
  if (peek().kind != Token::kWord) refuse("a word is missing before \"" + peek().text + "\"");
  return take().text;
}

u64 Parser::number() {
  const bool minus = accept("-");
  if (peek().kind != Token::kNumber) refuse("a number is missing before \"" + peek().text + "\"");
  const u64 v = take().bits;
  return minus ? 0 - v : v;
}

void Parser::skip_statement() {
  while (peek().kind != Token::kEnd && !accept(";")) take();
}

void Parser::refuse(const std::string& what, u32 line) const {
  if (!line) line = peek().line;
  const std::string& text = line - 1 < text_->lines.size() ? text_->lines[line - 1] : "";
  throw Fault("line " + std::to_string(line) + " `" + text + "`: " + what);
}

const Symbol* Parser::find(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->find(name); found != scope->end()) return &found->second;
  return nullptr;
}

Symbol& Parser::define(const std::string& name, Symbol symbol) {
  return scopes_.back()[name] = symbol;
}

u32 Parser::place(char shape) {
  std::size_t& end = text_->register_bytes;
  if (shape != 'p') {
    const u32 slot = u32(end);
    end += kLanes * (shape == 'w' ? 8 : 4);
    return slot;
  }
  if (!chunk_left_) chunk_ = u32(end), chunk_left_ = 16, end += 64;
  --chunk_left_;
  chunk_ += 4;
  return chunk_ - 4;
}

u32 Parser::constant(char shape, u64 value) {
  if (shape == 'n') value = u32(value);
  const auto [found, is_new] = constants_.try_emplace({shape, value}, 0);
  if (is_new) {
    found->second = place(shape == 'p' ? 'n' : shape);
    text_->filled.push_back({found->second, shape == 'w', shape == 'p' && value ? ~0u : value});
  }
  return found->second;
}

u64 Parser::local(std::size_t bytes, std::size_t align) {
  const u64 at = rounded_up(text_->local_bytes, std::max<std::size_t>(align, 1));
  text_->local_bytes = at + bytes;
  return at;
}

// name, name[4], with what comes before: .align 8 .b8 name[24]
Parser::Declared Parser::declared() {
  Declared d{"", Type::kNone, 0, 0, false};
  std::size_t count = 1;
  while (peek().text.starts_with('.')) {
    const std::string w = word();
    if (w == ".align")
      d.align = number();
    else if (w == ".v2")
      count = 2;
    else if (w == ".v4")
      count = 4;
    else if (const Type t = type_named(w.substr(1)); t != Type::kNone)
      d.type = t;
    else if (w == ".b128")
      d.type = Type::kU64, count = 2;
  }
  d.name = word();
  const std::size_t unit = bytes_of(d.type) * count;
  d.bytes = unit;
  while (accept("[")) {
    if (accept("]")) {
      d.open = true;
      continue;
    }
    d.bytes *= number();
    expect("]");
  }
  d.align = std::max({d.align, unit, std::size_t(1)});
  return d;
}

void Parser::initialise(const Declared& d, std::byte* data, std::size_t bytes) {
  const std::size_t unit = bytes_of(d.type);
  std::size_t at = 0;
  const auto one = [&] {
    u64 v;
    u64 shift = 0;
    if (peek(1).is("(") && peek().kind == Token::kNumber) {  // 0xFF00(name): bytes of an address
      const u64 mask = take().bits;
      shift = mask ? u64(std::countr_zero(mask)) : 0;
    }
    const bool generic = accept("generic");
    const bool brackets = accept("(");
    if (peek().kind == Token::kWord) {
      const Symbol* s = find(word());
      if (!s || s->kind != Symbol::kGlobal)
        refuse("only addresses of global variables are known here");
      v = s->value;
      if (accept("+")) v += number();
    } else if (peek().kind == Token::kReal32 || peek().kind == Token::kReal64) {
      v = take().bits;
    } else {
      v = number();
    }
    if (brackets || generic) expect(")");
    v >>= shift;
    if (at + unit > bytes) refuse("more values than " + d.name + " has room for");
    std::memcpy(data + at, &v, unit);
    at += unit;
  };
  const auto list = [&](const auto& self) -> void {
    if (!accept("{")) return one();
    do self(self);
    while (accept(","));
    expect("}");
  };
  list(list);
}

void Parser::variable(const std::string& space, bool is_extern) {
  const Declared d = declared();
  Symbol s{Symbol::kGlobal, 'n', 0, 0, d.bytes, d.align};
  if (space == ".shared") {
    if (d.open) {
      define(d.name, {Symbol::kDynamic, 'n', 0, 0, 0, d.align});
    } else if (scopes_.size() == 1) {  // those of the module get their places where they are used
      s.kind = Symbol::kShared, s.value = ~0ull;
      define(d.name, s);
    } else {
      s.kind = Symbol::kShared, s.value = rounded_up(*shared_, d.align);
      *shared_ = s.value + d.bytes;
      define(d.name, s);
    }
  } else if (space == ".local" || space == ".param") {
    s.kind = Symbol::kLocal, s.value = local(d.bytes, d.align);
    if (kernel_) kernel_->local_bytes += d.bytes;
    define(d.name, s);
  } else {
    if (is_extern) refuse("the variable " + d.name + " is defined in another text");
    std::size_t bytes = d.bytes;
    if (d.open) {  // as many as there are values
      std::size_t n = 1;
      for (std::size_t k = 0; !peek(k).is(";"); ++k) n += peek(k).is(",");
      bytes = bytes * n;
    }
    auto& memory = text_->storage.emplace_back(new std::byte[bytes + 256]());
    const auto raw = reinterpret_cast<std::uintptr_t>(memory.get());
    std::byte* data = memory.get() + (rounded_up(raw, 256) - raw);
    s.value = reinterpret_cast<std::uintptr_t>(data), s.bytes = bytes;
    define(d.name, s);
    text_->variables[d.name] = {data, bytes};
    if (accept("=")) initialise(d, data, bytes);
  }
  if (accept(",")) refuse("two variables in one declaration");
  expect(";");
}

// .reg .b32 %r<10>; .reg .pred p, q;
void Parser::registers() {
  const std::string type = word();
  const Type t = type_named(type.substr(1));
  if (t == Type::kNone) refuse("registers of " + type);
  const char shape = t == Type::kPred ? 'p' : is_wide(t) ? 'w' : 'n';
  do {
    const std::string name = word();
    if (accept("<")) {
      const u64 n = number();
      expect(">");
      for (u64 k = 0; k < n; ++k)
        define(name + std::to_string(k), {Symbol::kRegister, shape, place(shape)});
      declared_registers_ += unsigned(n) * (shape == 'w' ? 2 : shape == 'n');
    } else {
      define(name, {Symbol::kRegister, shape, place(shape)});
    }
  } while (accept(","));
  expect(";");
}

// (.param .b64 a, .param .align 8 .b8 b[16]) of a device function: places in local memory
std::vector<std::pair<u64, std::size_t>> Parser::formals() {
  std::vector<std::pair<u64, std::size_t>> r;
  expect("(");
  while (!accept(")")) {
    if (!accept(".param")) refuse("a parameter that is in a register");
    const Declared d = declared();
    const u64 at = local(d.bytes, d.align);
    define(d.name, {Symbol::kLocal, 'n', 0, at, d.bytes, d.align});
    r.push_back({at, d.bytes});
    accept(",");
  }
  return r;
}

// What stands between the parameters and the body.
void Parser::directives() {
  while (peek().text.starts_with('.')) {
    const std::string w = word();
    u64 n = 1;
    while (peek().kind == Token::kNumber) {
      n *= number();
      accept(",");
    }
    if (kernel_ && (w == ".maxntid" || w == ".reqntid")) kernel_->max_threads = unsigned(n);
  }
}

void Parser::entry() {
  const std::string name = word();
  Kernel& kernel = text_->kernels[name];
  kernel.text = text_.get();
  kernel.info = {name, {}, 0, 0, 0, 1024, 0};
  kernel_ = &kernel.info;
  scopes_.emplace_back();
  if (accept("(")) {
    while (!accept(")")) {
      expect(".param");
      Type type = Type::kNone;
      std::size_t align = 0;
      // .u64 .ptr .global .align 4 name: the alignment is that of what the pointer points to
      bool pointer = false;
      while (peek().text.starts_with('.')) {
        const std::string w = word();
        if (w == ".ptr")
          pointer = true;
        else if (w == ".align" && pointer)
          number();
        else if (w == ".align")
          align = number();
        else if (const Type t = type_named(w.substr(1)); t != Type::kNone)
          type = t;
      }
      const std::string parameter = word();
      std::size_t bytes = bytes_of(type);
      align = std::max({align, bytes, std::size_t(1)});
      if (accept("[")) {
        bytes *= number();
        expect("]");
      }
      const std::size_t at = rounded_up(kernel_->parameter_bytes, align);
      kernel_->parameter_bytes = at + bytes;
      kernel_->parameters.push_back({parameter, at, bytes});
      define(parameter, {Symbol::kParam, 'n', 0, at, bytes, align});
      accept(",");
    }
  }
  directives();
  if (accept(";")) {  // only announced
    scopes_.pop_back();
    kernel_ = nullptr;
    return;
  }
  kernel.entry = u32(text_->code.size());
  shared_ = &kernel.info.static_shared;
  *shared_ = function_shared_;
  shared_of_module_ = shared_of_functions_;
  body();
  const unsigned most = 65536 / std::max(kernel_->max_threads, 1u) / 8 * 8;
  kernel_->registers = std::clamp((declared_registers_ + 7) / 8 * 8, 16u, std::min(most, 255u));
  kernel_ = nullptr;
  shared_ = &function_shared_;
}

void Parser::function() {
  scopes_.emplace_back();
  std::vector<std::pair<u64, std::size_t>> results, arguments;
  if (peek().is("(")) results = formals();
  const std::string name = word();
  if (peek().is("(")) arguments = formals();
  directives();
  const Symbol* known = find(name);
  if (!known) {
    scopes_.front()[name] = {Symbol::kFunction, 'n', 0, functions_.size(), 0, 1};
    functions_.push_back({name, false, 0, results, arguments});
    known = find(name);
  }
  Function& f = functions_[known->value];
  if (accept(";")) {
    scopes_.pop_back();
    return;
  }
  f.defined = true;
  f.entry = u32(text_->code.size());
  f.results = results, f.arguments = arguments;
  body();
}

void Parser::body() {
  declared_registers_ = 0;
  labels_.clear(), label_names_.clear(), table_names_.clear(), table_labels_.clear();
  first_instruction_ = text_->code.size();
  first_table_ = text_->tables.size();
  expect("{");
  const std::size_t depth = scopes_.size();
  while (scopes_.size() >= depth) {
    if (accept("{"))
      scopes_.emplace_back();
    else if (accept("}"))
      scopes_.pop_back();
    else if (peek().kind == Token::kEnd)
      refuse("the text ends in a function");
    else
      statement();
  }
  Instr last;
  last.flow = kernel_ ? Flow::kExit : Flow::kReturn;
  last.line = peek().line;
  emit(last);
  finish_body();
}

// Labels become places in the code.
void Parser::finish_body() {
  const auto place = [&](const std::string& name, u32 line) {
    const auto found = labels_.find(name);
    if (found == labels_.end()) refuse("there is no label " + name, line);
    return found->second;
  };
  for (std::size_t k = first_instruction_; k < text_->code.size(); ++k) {
    Instr& i = text_->code[k];
    if (i.flow == Flow::kBranch) i.target = place(label_names_[i.target], i.line);
    if (i.flow != Flow::kTable) continue;
    std::vector<u32> targets;
    for (const std::string& name : table_labels_[table_names_[i.target]])
      targets.push_back(place(name, i.line));
    i.target = u32(text_->tables.size());
    text_->tables.push_back(targets);
  }
}

std::unique_ptr<Module::Text> Parser::run() {
  while (peek().kind != Token::kEnd) {
    const std::string w = word();
    if (w == ".version" || w == ".target" || w == ".address_size") {
      const u32 line = peek().line;
      while (peek().kind != Token::kEnd && peek().line == line) take();
    } else if (w == ".file") {
      const u32 line = peek().line;
      while (peek().kind != Token::kEnd && peek().line == line) take();
    } else if (w == ".section") {
      while (!accept("}")) take();
    } else if (w == ".visible" || w == ".weak" || w == ".common" || w == ".extern") {
      const bool is_extern = w == ".extern";
      const std::string what = word();
      if (what == ".entry")
        entry();
      else if (what == ".func")
        function();
      else
        variable(what, is_extern);
    } else if (w == ".entry") {
      entry();
    } else if (w == ".func") {
      function();
    } else if (w == ".global" || w == ".const" || w == ".shared") {
      variable(w, false);
    } else if (w == ".pragma" || w == ".alias") {
      skip_statement();
    } else {
      refuse("a declaration that is not known");
    }
  }
  resolve_calls();
  text_->register_bytes = rounded_up(text_->register_bytes, 64);
  text_->local_bytes = rounded_up(text_->local_bytes, 16);
  return std::move(text_);
}

}  // namespace emu
