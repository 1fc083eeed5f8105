//! What a codec's text says, before anybody asks whether it makes sense.

/// Where something stands in the text; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The line.
    pub line: usize,
    /// The column, in letters.
    pub column: usize,
}

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Name {
    pub text: String,
    pub place: Place,
}

/// A whole file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    pub name: Name,
    pub header: Vec<Header>,
    /// What `encode` calls its input.
    pub input: Name,
    pub encode: Vec<Statement>,
    pub decode: Vec<Statement>,
}

/// A line before `encode`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Header {
    /// `block 128`
    Block(Expression),
    /// `param tau = 0.01 in 0.001 .. 1`; whole if written without a fraction.
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

/// A line of `encode` or `decode`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Statement {
    /// `scale = mean(abs(x))`
    Let(Name, Expression),
    /// `emit f32 scale`
    Emit { wire: Name, value: Expression, place: Place },
    /// `yield codes * scale`
    Yield { value: Expression, place: Place },
}

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Literal {
    pub value: f64,
    /// It has neither point nor exponent.
    pub whole: bool,
}

/// Something with a value. Its place is where its operator, or else its first letter, stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    pub place: Place,
    pub node: Node,
}

/// The sorts of expressions.
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
