//! The built-in models: as large as published, and differentiable as a whole.

mod attacks;
mod file;
#[path = "../reference/mod.rs"]
mod reference;
mod rewrite;
mod small;

use thinwire_model::{
    AttentionKind, Gpt, Kind, NAMES, Operator, Role, classes, fingerprint, gpt, named, summary,
    usual_sequence,
};

#[test]
fn models_have_as_many_parameters_as_published() {
    let published = [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),
        ("bert-base", 109_514_298),
        ("bert-large", 335_174_458),
        ("vgg13", 133_047_848),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("resnet50", 25_557_032),
        ("mlp", 669_706),
    ];
    for (name, parameters) in published {
        let graph = named(name, 1, usual_sequence(name).min(8)).unwrap();
        let found: usize = graph.parameters().map(|(_, tensor)| tensor.elements()).sum();
        assert_eq!(found, parameters, "{name}");
    }
}

#[test]
fn every_name_is_a_model_and_all_its_nodes_stand_in_blocks() {
    for name in NAMES {
        let graph = named(name, 2, usual_sequence(name).min(16)).unwrap();
        assert_eq!(graph.tensors[graph.loss.unwrap()].elements(), 1, "{name}");
        let in_blocks: usize = graph.blocks.iter().map(|block| block.nodes.len()).sum();
        assert_eq!(in_blocks, graph.nodes.len(), "{name}");
    }
}

#[test]
fn equal_layers_are_one_class() {
    let counts = |name: &str| -> Vec<usize> {
        let graph = named(name, 1, 8.min(usual_sequence(name))).unwrap();
        classes(&graph).iter().map(|class| class.blocks.len()).collect()
    };
    assert_eq!(counts("gpt3-175b"), [1, 96, 1]);
    assert_eq!(counts("llama2-7b"), [1, 32, 1]);
    assert_eq!(counts("mixtral-8x7b"), [1, 32, 1]);
    assert_eq!(counts("bert-large"), [1, 24, 1]);
    assert_eq!(counts("resnet50"), [1, 1, 2, 1, 3, 1, 5, 1, 2, 1]);
}

#[test]
fn operands_of_too_many_dimensions_are_refused() {
    let (shape, index) = ([1; 5], [1; 6]);
    let refused =
        |operator: Operator, shapes: &[&[usize]]| operator.declare(shapes).unwrap_err().to_string();
    let expected =
        "cross_entropy: an operand has shape [1, 1, 1, 1, 1], expected at most 4 dimensions";
    assert_eq!(refused(thinwire_model::CrossEntropy.into(), &[&index, &shape]), expected);
    let expected = "embedding: an operand has shape [1, 1, 1, 1, 1], expected at most 4 dimensions";
    assert_eq!(refused(thinwire_model::Embedding::plain().into(), &[&[7, 2], &shape]), expected);
}

#[test]
fn dropouts_of_equal_layers_differ_and_their_class_is_one() {
    let gpt = Gpt { dropout: 0.1, ..gpt::named("gpt2").unwrap() };
    let graph = gpt.graph(1, 8).unwrap();
    assert_eq!(classes(&graph).len(), 3);
    let mut streams: Vec<u32> = graph
        .nodes
        .iter()
        .filter_map(|node| match &node.operator {
            Operator::Dropout(dropout) => Some(dropout.stream),
            _ => None,
        })
        .collect();
    assert_eq!(streams.len(), 1 + 2 * 12);
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), 1 + 2 * 12);
}

#[test]
fn a_layer_of_another_size_is_another_class() {
    let mut graph = named("gpt2", 1, 8).unwrap();
    let rate = fingerprint(&graph);
    let node = graph.blocks[5].nodes.start;
    graph.nodes[node].operator = thinwire_model::RmsNorm::default().into();
    assert_eq!(classes(&graph).len(), 4);
    assert_ne!(fingerprint(&graph), rate);
}

/// 72BLsh²(1 + s/6h + V/12hL) of Narayanan et al., "Efficient Large-Scale Language Model Training on
/// GPU Clusters Using Megatron-LM", section 5.1 without recomputation.
#[test]
fn flops_of_products_are_those_of_the_formula() {
    for name in ["gpt2", "gpt3-175b", "gpt-1t"] {
        let gpt = gpt::named(name).unwrap();
        let (batch, s) = (2, gpt.positions as f64);
        let graph = gpt.graph(batch, gpt.positions).unwrap();
        let (h, layers, v) = (gpt.hidden as f64, gpt.layers as f64, gpt.vocabulary as f64);
        let formula = 72.0
            * batch as f64
            * layers
            * s
            * h
            * h
            * (1.0 + s / (6.0 * h) + v / (12.0 * h * layers));
        let summary = summary(&graph).unwrap();
        let flops = summary.forward_flops + summary.backward_flops;
        assert!(flops > formula, "{name}: {flops:e}, products alone {formula:e}");
        assert!(flops < 1.02 * formula, "{name}: {flops:e}, products alone {formula:e}");
    }
}

/// sbh(34 + 5as/h) bytes of Korthikanti et al., "Reducing Activation Recomputation in Large
/// Transformer Models", equation 1, of which sbh(2 + as/h) are masks of dropout, here computed again.
#[test]
fn kept_activations_are_those_of_the_formula() {
    let kept = |layers: usize| {
        let (attention, dropout) = (AttentionKind::Plain, 0.1);
        let gpt = Gpt { layers, attention, dropout, ..gpt::named("gpt2").unwrap() };
        summary(&gpt.graph(2, 512).unwrap()).unwrap().kept_activations
    };
    let (s, b, h, a) = (512, 2, 768, 12);
    let bytes = 2 * (kept(3) - kept(2));
    assert_eq!(bytes, s * b * h * 32 + 4 * a * s * s * b);
}

#[test]
fn fused_attention_keeps_no_scores() {
    let kept = |layers: usize| {
        let gpt = Gpt { layers, ..gpt::named("gpt2").unwrap() };
        summary(&gpt.graph(2, 512).unwrap()).unwrap().kept_activations
    };
    assert_eq!(2 * (kept(3) - kept(2)), 512 * 2 * 768 * 32);
}

#[test]
fn mistakes_are_named_with_both_values() {
    let message = |name: &str, sequence: usize| named(name, 1, sequence).unwrap_err().to_string();
    assert_eq!(
        message("gpt2", 2000),
        "gpt2: a sequence has 2000 tokens, but the model has 1024 positions"
    );
    assert!(
        message("gpt5", 1).starts_with("no model is called 'gpt5', expected a name such as gpt2, ")
    );
    assert_eq!(named("gpt2", 0, 1).unwrap_err().kind(), Kind::Sizes);
    let odd = Gpt { heads: 7, ..gpt::named("gpt2").unwrap() };
    let error = odd.graph(1, 8).unwrap_err();
    assert_eq!(error.to_string(), "768 features cannot be 7 heads of equal size");
}

#[test]
fn a_name_may_say_all_sizes() {
    let name = "gpt:layers=12,width=768,heads=12,vocabulary=50257,positions=1024";
    assert_eq!(named(name, 2, 16).unwrap(), named("gpt2", 2, 16).unwrap());
    assert_eq!(usual_sequence(name), 1024);
    let message = |name: &str| named(name, 1, 1).unwrap_err().to_string();
    assert!(message("gpt:layers=2").contains("'layers=2' does not say width, expected "));
    let deep = name.replace("layers=12", "layers=5000");
    assert!(message(&deep).ends_with(": 5000 layers, expected at most 4096"));
}

#[test]
fn a_gpt_of_bytes_has_a_head_of_its_own() {
    let name = "bytes:layers=4,width=128,heads=4,positions=128";
    let graph = named(name, 2, 16).unwrap();
    let found: usize = graph.parameters().map(|(_, tensor)| tensor.elements()).sum();
    // Twelve squares, biases and norms of every block; two tables, positions and the last norm.
    assert_eq!(found, 4 * (12 * 128 * 128 + 13 * 128) + (2 * 256 + 128 + 2) * 128);
    assert_eq!(classes(&graph).iter().map(|class| class.blocks.len()).max(), Some(4));
    assert_eq!(usual_sequence(name), 128);
    assert!(named(name, 1, 129).is_err());
}

#[test]
fn every_family_may_say_its_sizes() {
    let llama = "layers=32,width=4096,heads=32,key_heads=8,feed_forward=14336";
    let moe = format!("moe:{llama},vocabulary=32000,positions=4096,experts=8,chosen=2");
    let summary = |name: &str| summary(&named(name, 1, 16).unwrap()).unwrap();
    assert_eq!(summary(&moe), summary("mixtral-8x7b"));
    let llama = format!(
        "llama:{},vocabulary=32000,positions=2048",
        "layers=22,width=2048,heads=32,key_heads=4,feed_forward=5632"
    );
    assert_eq!(named(&llama, 2, 16).unwrap(), named("tinyllama-1.1b", 2, 16).unwrap());
    let bert = "bert:layers=12,width=768,heads=12,vocabulary=30522,positions=512";
    assert_eq!(named(bert, 2, 16).unwrap(), named("bert-base", 2, 16).unwrap());
    for (name, positions) in [(&moe[..], 4096), (&llama, 2048), (bert, 512)] {
        assert_eq!(usual_sequence(name), positions);
        let deep = name.replacen("layers=", "layers=9", 1).replacen("=9", "=999", 1);
        let error = named(&deep, 1, 1).unwrap_err().to_string();
        assert!(error.ends_with("expected at most 4096"), "{error}");
    }
    let error = named("moe:layers=1", 1, 1).unwrap_err().to_string();
    assert!(error.contains("does not say width, expected layers=N,"), "{error}");
}

#[test]
fn what_does_not_fit_a_model_is_refused() {
    let message = |name: &str, batch: usize, sequence: usize| {
        named(name, batch, sequence).unwrap_err().to_string()
    };
    for name in ["resnet50", "vgg16", "mlp"] {
        let expected = format!("{name}: a sequence has 5 tokens, but the model has no sequences");
        assert_eq!(message(name, 1, 5), expected);
    }
    for (name, batch) in NAMES.iter().flat_map(|name| [(name, 1 << 50), (name, usize::MAX)]) {
        let text = message(name, batch, usual_sequence(name));
        assert!(text.ends_with("expected at most 281474976710656 elements"), "{text}");
        assert!(text.contains(&batch.to_string()), "{text}");
    }
    let text = message(&"x".repeat(100_000), 1, 1);
    let expected = format!("no model is called '{}…', expected a name such as ", "x".repeat(60));
    assert!(text.starts_with(&expected), "{text}");
}

/// Of a micro-batch so large that the next one is refused, all figures still add up.
#[test]
fn a_large_micro_batch_keeps_less_than_it_computes() {
    for name in ["gpt2-medium", "gpt3-175b", "resnet50", "mixtral-8x7b"] {
        let found = |power: u32| named(name, 1 << power, usual_sequence(name));
        let graph = (0..48).rev().find_map(|power| found(power).ok()).unwrap();
        let Ok(summary) = summary(&graph) else { continue };
        assert!(summary.kept_activations <= summary.activations + summary.parameters, "{name}");
        assert!(summary.activations < usize::MAX / 4, "{name}: {}", summary.activations);
    }
}

#[test]
fn a_model_has_every_name_once() {
    let graph = named("gpt2", 1, 8).unwrap();
    let mut names: Vec<&str> = graph.tensors.iter().map(|tensor| &tensor.name[..]).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    let named = |name: &str| graph.tensors.iter().find(|tensor| tensor.name == name);
    assert!(matches!(named("block.3.mlp.up.weight").unwrap().role, Role::Parameter(_)));
    assert!(named("block.12.mlp.up.weight").is_none());
}
