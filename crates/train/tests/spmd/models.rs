//! Small models of several families, with sizes that eight ranks can cut.

use thinwire_model::{AttentionKind, Gpt, Graph, Llama, Resnet, Vgg};

/// Classes or tokens of every model here.
pub const CLASSES: usize = 8;

pub fn gpt() -> Graph {
    let gpt = Gpt {
        layers: 2,
        hidden: 8,
        heads: 4,
        feed_forward: 16,
        vocabulary: CLASSES,
        positions: 4,
        attention: AttentionKind::Fused,
        dropout: 0.1,
    };
    gpt.graph(4, 4).unwrap()
}

pub fn llama() -> Graph {
    let llama = Llama {
        layers: 2,
        hidden: 8,
        heads: 4,
        key_heads: 2,
        feed_forward: 8,
        vocabulary: CLASSES,
        positions: 4,
        base: 100.0,
    };
    llama.graph(4, 4).unwrap()
}

pub fn moe() -> Graph {
    let sizes = "layers=2,width=8,heads=4,key_heads=2,feed_forward=4,positions=4";
    let name = format!("moe:{sizes},vocabulary={CLASSES},experts=4,chosen=2");
    thinwire_model::named(&name, 4, 4).unwrap()
}

pub fn vgg() -> Graph {
    let stages = vec![(1, 4), (1, 8)];
    Vgg { stages, hidden: vec![8], image: 4, classes: CLASSES }.graph(4).unwrap()
}

pub fn resnet() -> Graph {
    Resnet { stages: vec![(1, 2), (1, 4)], stem: 4, image: 16, classes: CLASSES }.graph(4).unwrap()
}
