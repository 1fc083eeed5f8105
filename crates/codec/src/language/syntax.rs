//! Syntax tree of a codec, before any check of names and types.

/// Place in a text; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Line.
    pub line: usize,
    /// Column, counted in characters from 1.
    pub column: usize,
}

/// Word and its place in the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Name {
    pub text: String,
    pub place: Place,
}

/// Text of a codec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    pub name: Name,
    pub header: Vec<Header>,
    /// Name of the input of `encode`.
    pub input: Name,
    pub encode: Vec<Statement>,
    pub decode: Vec<Statement>,
}

/// Line before `encode`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Header {
    /// `block 128`
    Block(Expression),
    /// `param tau = 0.01 in 0.001 .. 1`; an integer if written without a fraction.
    Parameter { name: Name, default: Literal, range: Option<(f64, f64)> },
    /// `exchange two_shot`
    Exchange(Name),
    /// `feedback`
    Feedback,
    /// `contraction 1 / block`
    Contraction(Expression),
    /// `variance block / 4`
    Variance(Expression),
    /// `kept = ceil(ratio * elements)`
    Constant(Name, Expression),
}

/// Line of `encode` or `decode`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Statement {
    /// `scale = mean(abs(x))`
    Let(Name, Expression),
    /// `emit f32 scale`
    Emit { wire: Name, value: Expression, place: Place },
    /// `yield codes * scale`
    Yield { value: Expression, place: Place },
}

/// Number in a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Literal {
    pub value: f64,
    /// Whether the number was written without a point and without an exponent.
    pub is_int: bool,
}

/// Expression, with the place of the operator or else of the first letter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    pub place: Place,
    pub node: Node,
}

/// Kind of an expression, with its operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Number(Literal),
    Name(String),
    /// `take u1`
    Take(Name),
    /// `-x`, `not m`: the operator is one of those two words.
    Prefix(&'static str, Box<Expression>),
    /// `a + b`
    Infix(&'static str, Box<Expression>, Box<Expression>),
    /// `max(a, b)`
    Call(String, Vec<Expression>),
    /// `x[chosen]`
    Index(Box<Expression>, Box<Expression>),
}
