//! Programs as CUDA C, for devices whose kernels are compiled when a job starts.
//!
//! Every instruction becomes a loop over the elements that a thread has, or a call of a function in
//! `kernels/language.hpp` of crate `device`, where the team of threads and its memory are. Constants become
//! literals, unless they depend on the number of elements.
//!
//! Law: the kernels give the bits of the interpreter, wherever all values are finite.

use std::collections::HashMap;
use std::fmt::Write;

use super::frame::Frame;
use super::program::{
    Binary, Comparison, Formula, Instruction, Length, Operand, Operation, Program, Reduction,
    Source, Unary, evaluate,
};
use super::wire::Wire;

/// Bytes of shared memory that a block of threads has on every device.
const SHARED_BYTES_MAX: usize = 48 << 10;

/// Kernels of a codec in CUDA C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuda {
    /// Source, which includes `language.hpp`.
    pub text: &'static str,
    /// Name of the source.
    pub file: &'static str,
    /// Name of the kernel that encodes.
    pub encode: &'static str,
    /// Name of the kernel that decodes.
    pub decode: &'static str,
    /// Elements of a block.
    pub block: u32,
    /// Threads that work on a block.
    pub threads: u32,
}

/// Returns the kernels of a program. Their texts are leaked, since a process has few codecs.
///
/// # Errors
/// The construct for which there is no kernel.
pub(crate) fn emit(program: &Program) -> Result<Cuda, String> {
    let Some(block) = program.block else {
        return Err("a codec without a line 'block' works on whole tensors".to_owned());
    };
    let mut source = Emitter::new(program, block)?.source()?;
    let name = format!("{}_{:08x}", program.name, thinwire_wire::checksum(source.as_bytes()));
    source = source.replace(NAME, &name);
    let leak = |text: String| -> &'static str { text.leak() };
    Ok(Cuda {
        text: leak(source),
        file: leak(format!("{name}.cu")),
        encode: leak(format!("encode_{name}")),
        decode: leak(format!("decode_{name}")),
        block: block as u32,
        threads: threads(block) as u32,
    })
}

/// Stands for the name of the program, which has a checksum of the text.
const NAME: &str = "NAME";

/// Returns the threads for a block, as `Sizes::THREADS` of language.hpp.
fn threads(block: usize) -> usize {
    if block <= 256 { 32 } else { (block / 8).next_multiple_of(32).min(256) }
}

/// Type of a value in C.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    Float,
    Int,
}

impl Type {
    fn of(operand: Operand) -> Type {
        if operand.is_int() { Type::Int } else { Type::Float }
    }

    fn name(self) -> &'static str {
        match self {
            Type::Float => "float",
            Type::Int => "i32",
        }
    }
}

struct Emitter<'a> {
    program: &'a Program,
    block: usize,
    /// Constants of a full block, and whether they are those of every block.
    constants: Vec<f64>,
    is_fixed: Vec<bool>,
    /// Name of the value in each register.
    names: HashMap<Source, String>,
    values: usize,
    text: String,
}

impl<'a> Emitter<'a> {
    fn new(program: &'a Program, block: usize) -> Result<Emitter<'a>, String> {
        let constants = evaluate(&program.constants, block);
        let mut is_fixed: Vec<bool> = Vec::with_capacity(constants.len());
        for formula in &program.constants {
            is_fixed.push(match formula {
                Formula::Number(_) => true,
                Formula::Elements => false,
                Formula::Unary(_, a) => is_fixed[*a],
                Formula::Binary(_, a, b) => is_fixed[*a] && is_fixed[*b],
            });
        }
        let (names, text) = Default::default();
        Ok(Emitter { program, block, constants, is_fixed, names, values: 0, text })
    }

    fn source(mut self) -> Result<String, String> {
        let bytes = |elements| Frame::new(self.program, elements).bytes;
        let (whole, longest) = (bytes(self.block), (1..=self.block).map(bytes).max().unwrap_or(0));
        let padded = self.block.next_multiple_of(128);
        let teams = if self.block <= 256 { 4 } else { 1 };
        let shared = teams * (4 * padded + longest.next_multiple_of(4) + threads(self.block) / 8);
        if shared > SHARED_BYTES_MAX {
            return Err(format!("a block of {} elements and {longest} bytes", self.block));
        }
        let (block, name) = (self.block, &self.program.name);
        self.line(0, &format!("// Codec {name}, as thinwire codec emit --cuda writes it."));
        self.line(0, "#include \"language.hpp\"\n");
        self.line(0, &format!("struct {NAME} : Sizes<{block}, {longest}> {{"));
        self.line(1, "// Bytes of a whole block.");
        self.line(1, &format!("static constexpr u32 WHOLE = {whole};\n"));
        self.layout()?;
        self.section("encode", "const float (&x)[EACH]", &self.program.encode)?;
        self.section("decode", "float (&y)[EACH], bool (&there)[EACH]", &self.program.decode)?;
        self.spoil();
        self.line(0, "};\n");
        self.line(0, &format!("PROGRAM(encode_{NAME}, decode_{NAME}, {NAME})"));
        Ok(self.text)
    }

    fn line(&mut self, depth: usize, line: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.text, "{:width$}{line}", "", width = 4 * depth);
    }

    /// Writes where the fields of a block are, and the numbers of their values.
    fn layout(&mut self) -> Result<(), String> {
        let fields = self.program.fields.len();
        self.line(1, "// Fields of a block of so many elements.");
        self.line(1, "struct Layout {");
        self.line(2, &format!("u32 at[{}], count[{fields}], bytes;\n", fields + 1));
        self.line(2, "explicit Layout(u32 elements) {");
        self.varying(3)?;
        self.line(3, "at[0] = 0;");
        for (index, field) in self.program.fields.iter().enumerate() {
            let count = self.count(field.length);
            self.line(3, &format!("count[{index}] = {count};"));
            let bytes = match field.wire {
                Wire::F32 => format!("4 * count[{index}]"),
                Wire::F16 | Wire::Bf16 => format!("2 * count[{index}]"),
                Wire::Bits { width, .. } => format!("code_bytes({width}, count[{index}])"),
                Wire::Indices => format!("IndexLayout(count[{index}], elements).bytes()"),
            };
            self.line(3, &format!("at[{}] = at[{index}] + {bytes};", index + 1));
        }
        self.line(3, &format!("bytes = at[{fields}];"));
        self.line(2, "}");
        self.line(1, "};\n");
        Ok(())
    }

    /// Writes the constants that depend on the number of elements.
    fn varying(&mut self, depth: usize) -> Result<(), String> {
        for at in 0..self.constants.len() {
            if self.is_fixed[at] {
                continue;
            }
            let value = match self.program.constants[at] {
                Formula::Number(_) | Formula::Elements => "elements".to_owned(),
                Formula::Unary(operator, a) => {
                    let a = self.double(a)?;
                    match operator {
                        Unary::Negative => format!("-{a}"),
                        Unary::Absolute => format!("fabs({a})"),
                        Unary::Sqrt => format!("sqrt({a})"),
                        Unary::Floor => format!("floor({a})"),
                        Unary::Ceiling => format!("whole_above({a})"),
                    }
                }
                Formula::Binary(operator, a, b) => {
                    let (a, b) = (self.double(a)?, self.double(b)?);
                    match operator {
                        Binary::Add => format!("{a} + {b}"),
                        Binary::Subtract => format!("{a} - {b}"),
                        Binary::Multiply => format!("{a} * {b}"),
                        Binary::Divide => format!("ratio({a}, {b})"),
                        Binary::Min => format!("least({a}, {b})"),
                        Binary::Max => format!("most({a}, {b})"),
                    }
                }
            };
            self.line(depth, &format!("[[maybe_unused]] const double c{at} = {value};"));
        }
        Ok(())
    }

    /// Returns a constant as f64.
    fn double(&self, at: usize) -> Result<String, String> {
        match self.constants[at] {
            _ if !self.is_fixed[at] => Ok(format!("c{at}")),
            value if value.is_finite() => Ok(format!("({value:?})")),
            value => Err(format!("a constant of {value}")),
        }
    }

    /// Returns the number of values of a length.
    fn count(&self, length: Length) -> String {
        match length {
            Length::Constant | Length::One => "1".to_owned(),
            Length::Elements => "elements".to_owned(),
            Length::Count(at) if self.is_fixed[at] => {
                let count = (self.constants[at] as usize).clamp(1, self.block);
                format!("smaller({count}u, elements)")
            }
            Length::Count(at) => format!("counted(c{at}, elements)"),
        }
    }

    fn section(
        &mut self,
        name: &str,
        values: &str,
        instructions: &[Instruction],
    ) -> Result<(), String> {
        self.names.clear();
        self.names.insert(Source::Input, "x".to_owned());
        let team = format!("Team<{NAME}>& team, const Layout& layout");
        self.line(1, &format!("static void {name}({team}, {values}) {{"));
        self.line(2, "[[maybe_unused]] const u32 elements = team.elements;");
        self.varying(2)?;
        for instruction in instructions {
            match instruction.output {
                Some(output) => self.compute(instruction.operation, output),
                None => self.finish(instruction.operation),
            }
        }
        self.line(1, "}\n");
        Ok(())
    }

    /// Writes an instruction with a result.
    fn compute(&mut self, operation: Operation, output: Operand) {
        let kind = Type::of(output);
        let is_one = matches!(output.length, Length::Constant | Length::One);
        let count = self.count(output.length);
        let name = self.fresh();
        if let Some(value) = self.map(operation, kind) {
            match is_one {
                true => self.line(2, &format!("const {} {name} = {value};", kind.name())),
                false => self.fill(kind, &name, &value),
            }
        } else if let Some(value) = self.single(operation, output) {
            self.line(2, &format!("const {} {name} = {value};", kind.name()));
        } else {
            self.declare(kind, &name);
            let call = self.call(operation, &name, kind, &count);
            self.line(2, &format!("team.{call};"));
        }
        self.names.insert(output.source, name);
    }

    fn fresh(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    fn declare(&mut self, kind: Type, name: &str) {
        self.line(2, &format!("[[maybe_unused]] {} {name}[EACH];", kind.name()));
    }

    /// Writes an array, of whose element `k` the value is given.
    fn fill(&mut self, kind: Type, name: &str, value: &str) {
        self.declare(kind, name);
        self.line(2, &format!("for (u32 k = 0; k < EACH; k++) {name}[k] = {value};"));
    }

    /// Returns element `k` of a value.
    fn at(&self, operand: Operand, kind: Type) -> String {
        match operand.source {
            Source::Constant(at) => self.constant(at, kind),
            source => match operand.length {
                Length::Constant | Length::One => self.names[&source].clone(),
                Length::Elements | Length::Count(_) => format!("{}[k]", self.names[&source]),
            },
        }
    }

    fn constant(&self, at: usize, kind: Type) -> String {
        let value = self.constants[at];
        match kind {
            Type::Float if !self.is_fixed[at] => format!("(float)c{at}"),
            Type::Int if !self.is_fixed[at] => format!("whole(c{at})"),
            Type::Float => float(value as f32),
            Type::Int => int(value as i32),
        }
    }

    /// Returns the name of an array with a value; one per block is repeated.
    fn array(&mut self, operand: Operand, kind: Type) -> String {
        let is_one = matches!(operand.length, Length::Constant | Length::One);
        match self.names.get(&operand.source) {
            Some(name) if !is_one => name.clone(),
            _ => {
                let (value, name) = (self.at(operand, kind), self.fresh());
                self.fill(kind, &name, &value);
                name
            }
        }
    }

    /// Returns element `k` of the result of an operation that works element by element.
    fn map(&self, operation: Operation, kind: Type) -> Option<String> {
        use Operation as O;
        let (float, int) =
            (|a: Operand| self.at(a, Type::Float), |a: Operand| self.at(a, Type::Int));
        let own = |a: Operand| self.at(a, kind);
        Some(match operation {
            O::Unary(Unary::Negative, a) => format!("negated({})", own(a)),
            O::Unary(Unary::Absolute, a) => format!("magnitude({})", own(a)),
            O::Unary(Unary::Sqrt, a) => format!("sqrtf({})", float(a)),
            O::Unary(Unary::Floor, a) => format!("floorf({})", float(a)),
            O::Unary(Unary::Ceiling, a) => format!("ceilf({})", float(a)),
            O::Binary(operator, a, b) => match (operator, kind) {
                (Binary::Add, Type::Float) => format!("{} + {}", float(a), float(b)),
                (Binary::Subtract, Type::Float) => format!("{} - {}", float(a), float(b)),
                (Binary::Multiply, Type::Float) => format!("{} * {}", float(a), float(b)),
                (Binary::Divide, _) => format!("quotient({}, {})", float(a), float(b)),
                (Binary::Add, Type::Int) => format!("plus({}, {})", int(a), int(b)),
                (Binary::Subtract, Type::Int) => format!("minus({}, {})", int(a), int(b)),
                (Binary::Multiply, Type::Int) => format!("times({}, {})", int(a), int(b)),
                (Binary::Min, _) => format!("least({}, {})", own(a), own(b)),
                (Binary::Max, _) => format!("most({}, {})", own(a), own(b)),
            },
            O::Compare(comparison, a, b) => {
                let kind = if a.is_int() || b.is_int() { Type::Int } else { Type::Float };
                let operator = match comparison {
                    Comparison::Below => "<",
                    Comparison::AtMost => "<=",
                    Comparison::Equal => "==",
                    Comparison::Unequal => "!=",
                };
                format!("{} {operator} {}", self.at(a, kind), self.at(b, kind))
            }
            O::And(a, b) => format!("{} & {}", int(a), int(b)),
            O::Or(a, b) => format!("{} | {}", int(a), int(b)),
            O::Not(a) => format!("{} ^ 1", int(a)),
            O::Negative(a) => format!("(i32)(bits_of({}) >> 31)", float(a)),
            O::Round(a) => format!("rounded({})", float(a)),
            O::Number(a) => format!("(float){}", int(a)),
            O::Digits { value, digits, up } => {
                let name = if up { "digits_up" } else { "digits" };
                format!("{name}({}, {digits})", float(value))
            }
            O::Select(mask, a, b) => format!("{} ? {} : {}", int(mask), own(a), own(b)),
            _ => return None,
        })
    }

    /// Returns the result of an operation that makes one value per block.
    fn single(&mut self, operation: Operation, output: Operand) -> Option<String> {
        use Operation as O;
        Some(match operation {
            O::BlockIndex => "(i32)team.number".to_owned(),
            O::Reduce(reduction, a) => {
                let count = self.count(a.length);
                if output.is_int() {
                    let a = self.array(a, Type::Int);
                    return Some(format!("team.count_of({a}, {count})"));
                }
                let a = self.array(a, Type::Float);
                match reduction {
                    Reduction::Sum => format!("team.sum({a}, {count})"),
                    Reduction::Mean => {
                        let share = 1.0 / Frame::new(self.program, self.block).parts();
                        format!("team.mean({a}, {count}, {})", float(share))
                    }
                    Reduction::Min => format!("team.least_of({a}, {count})"),
                    Reduction::Max => format!("team.most_of({a}, {count})"),
                }
            }
            O::Rank { value, count } => {
                let (all, rank) = (self.count(value.length), self.constant(count, Type::Int));
                let value = self.array(value, Type::Float);
                format!("team.rank({value}, {all}, {rank})")
            }
            O::Take(field) if matches!(output.length, Length::One) => {
                let place = format!("layout.at[{field}]");
                match self.program.fields[field].wire {
                    Wire::Bits { width, signed } => {
                        format!("team.code({place}, 1, {width}, {signed}, 0)")
                    }
                    wire => format!("team.template get<{}>({place}, 0)", format_of(wire)),
                }
            }
            _ => return None,
        })
    }

    /// Returns the call of a function of the team that writes an array.
    fn call(&mut self, operation: Operation, to: &str, kind: Type, count: &str) -> String {
        use Operation as O;
        match operation {
            O::RoundRandom(a) => {
                // The numbers of the draw are replaced by the rounded ones.
                self.line(2, &format!("team.draw({to});"));
                let a = self.at(a, Type::Float);
                let value = format!("{to}[k] = rounded_randomly({a}, {to}[k])");
                self.line(2, &format!("for (u32 k = 0; k < EACH; k++) {value};"));
                "sync()".to_owned()
            }
            O::Random => {
                let bits = self.fresh();
                self.declare(Type::Int, &bits);
                self.line(2, &format!("team.draw({bits});"));
                let value = format!("{to}[k] = (float){bits}[k] / 32768.0f");
                self.line(2, &format!("for (u32 k = 0; k < EACH; k++) {value};"));
                "sync()".to_owned()
            }
            O::Scan(a) => format!("scan({to}, {}, {count})", self.array(a, Type::Float)),
            O::Shift { value, by } => {
                let (value, by) = (self.array(value, kind), self.constant(by, Type::Int));
                format!("shift({to}, {value}, {count}, {by})")
            }
            O::Transform(a) => format!("transform({to}, {})", self.array(a, Type::Float)),
            O::Largest(a) => format!("largest({to}, {}, {count})", self.array(a, Type::Float)),
            O::LargestWhere(a, mask) => {
                let (a, mask) = (self.array(a, Type::Float), self.array(mask, Type::Int));
                format!("largest_where({to}, {a}, {mask}, {count})")
            }
            O::Where(mask) => format!("where({to}, {}, {count})", self.array(mask, Type::Int)),
            O::WhereAbove(a, threshold) => {
                let mask = self.above(a, threshold);
                format!("where({to}, {mask}, {count})")
            }
            O::LargestAbove(a, threshold) => {
                let (mask, a) = (self.above(a, threshold), self.array(a, Type::Float));
                format!("largest_where({to}, {a}, {mask}, {count})")
            }
            O::Gather(a, indices) => {
                let (a, indices) = (self.array(a, kind), self.array(indices, Type::Int));
                format!("gather({to}, {a}, {indices}, {count})")
            }
            O::Sample { value, absolute } => {
                let mut value = self.array(value, Type::Float);
                if absolute {
                    let name = self.fresh();
                    self.fill(Type::Float, &name, &format!("magnitude({value}[k])"));
                    value = name;
                }
                format!("sample({to}, {value}, {count})")
            }
            O::Take(field) => {
                let place = format!("layout.at[{field}], {count}");
                match self.program.fields[field].wire {
                    Wire::Bits { width, signed } => {
                        format!("take_codes({to}, {place}, {width}, {signed})")
                    }
                    Wire::Indices => format!("take_indices({to}, {place})"),
                    wire => format!("template take<{}>({to}, {place})", format_of(wire)),
                }
            }
            _ => unreachable!("{operation:?} works element by element or has no result"),
        }
    }

    /// Writes the mask of magnitudes that reach a threshold; returns its name.
    fn above(&mut self, a: Operand, threshold: Operand) -> String {
        let (a, threshold) = (self.at(a, Type::Float), self.at(threshold, Type::Float));
        let name = self.fresh();
        self.fill(Type::Int, &name, &format!("magnitude({a}) >= {threshold}"));
        name
    }

    /// Writes an instruction without a result.
    fn finish(&mut self, operation: Operation) {
        use Operation as O;
        match operation {
            O::Emit(field, value) => {
                let place = format!("layout.at[{field}]");
                let count = format!("layout.count[{field}]");
                let call = match self.program.fields[field].wire {
                    Wire::Bits { .. } => {
                        let value = self.array(value, Type::Int);
                        self.put_codes(field, &value)
                    }
                    Wire::Indices => {
                        let value = self.array(value, Type::Int);
                        format!("put_indices({place}, {value}, {count})")
                    }
                    wire => {
                        let value = self.array(value, Type::Float);
                        format!("template put<{}>({place}, {value}, {count})", format_of(wire))
                    }
                };
                self.line(2, &format!("team.{call};"));
            }
            O::EmitRoundRandom(field, x, factor) => {
                let (x, factor) = (self.at(x, Type::Float), self.at(factor, Type::Float));
                let codes = self.fresh();
                self.declare(Type::Int, &codes);
                self.line(2, &format!("team.draw({codes});"));
                let value = format!("{codes}[k] = rounded_randomly({x} * {factor}, {codes}[k])");
                self.line(2, &format!("for (u32 k = 0; k < EACH; k++) {value};"));
                let call = self.put_codes(field, &codes);
                self.line(2, &format!("team.{call};"));
            }
            O::Yield(value) => {
                let value = self.at(value, Type::Float);
                self.yield_all(&value);
            }
            O::YieldSelect(field, a, b) => {
                let code = self.code(field);
                let (a, b) = (self.at(a, Type::Float), self.at(b, Type::Float));
                self.yield_all(&format!("{code}[k] ? {a} : {b}"));
            }
            O::YieldScaled(field, scale) => {
                let code = self.code(field);
                let scale = self.at(scale, Type::Float);
                self.yield_all(&format!("(float){code}[k] * {scale}"));
            }
            O::YieldAt(indices, numbers) => {
                let count = self.count(indices.length);
                let numbers = self.array(numbers, Type::Float);
                let indices = self.array(indices, Type::Int);
                let call = format!("scatter(y, there, {indices}, {numbers}, {count})");
                self.line(2, &format!("team.{call};"));
            }
            _ => unreachable!("{operation:?} has a result"),
        }
    }

    /// Writes the codes of a fused field; returns their name.
    fn code(&mut self, field: usize) -> String {
        let Wire::Bits { width, signed } = self.program.fields[field].wire else {
            unreachable!("fields that are fused have codes")
        };
        let codes = self.fresh();
        self.declare(Type::Int, &codes);
        let place = format!("layout.at[{field}], layout.count[{field}]");
        self.line(2, &format!("team.take_codes({codes}, {place}, {width}, {signed});"));
        codes
    }

    fn put_codes(&self, field: usize, codes: &str) -> String {
        let wire = self.program.fields[field].wire;
        let ((min, max), Wire::Bits { width, .. }) = (wire.range(), wire) else {
            unreachable!("codes are of fields with codes")
        };
        let place = format!("layout.at[{field}], {codes}, layout.count[{field}]");
        format!("put_codes({place}, {width}, {min}, {max})")
    }

    fn yield_all(&mut self, value: &str) {
        let each = "for (u32 k = 0; k < EACH; k++)";
        self.line(2, &format!("{each} y[k] = {value}, there[k] = true;"));
    }

    /// Writes what becomes of a block that is not finite.
    fn spoil(&mut self) {
        self.line(
            1,
            &format!("static void spoil(const Team<{NAME}>& team, const Layout& layout) {{"),
        );
        let has_indices = self.program.fields.iter().any(|field| field.wire == Wire::Indices);
        // Bytes with indices stay readable.
        for (at, field) in self.program.fields.iter().enumerate().filter(|_| !has_indices) {
            let call = match field.wire {
                Wire::Bits { .. } | Wire::Indices => {
                    format!("spoil_codes(layout.at[{at}], layout.at[{}])", at + 1)
                }
                wire => {
                    let place = format!("layout.at[{at}], layout.count[{at}]");
                    format!("template spoil<{}>({place})", format_of(wire))
                }
            };
            self.line(2, &format!("team.{call};"));
        }
        self.line(1, "}");
    }
}

fn format_of(wire: Wire) -> &'static str {
    match wire {
        Wire::F16 => "F16",
        Wire::Bf16 => "BF16",
        _ => "F32",
    }
}

/// Returns a literal; digits in decimal where all compilers agree on them.
fn float(value: f32) -> String {
    match value {
        value if value.is_normal() || value == 0.0 && value.is_sign_positive() => {
            let text = format!("{value:?}f");
            if value < 0.0 { format!("({text})") } else { text }
        }
        value => format!("float_of({:#x})", value.to_bits()),
    }
}

fn int(value: i32) -> String {
    match value {
        i32::MIN => "(-2147483647 - 1)".to_owned(),
        value if value < 0 => format!("({value})"),
        value => value.to_string(),
    }
}
