//! Multi30k and tiny Shakespeare, where they lie beside the repository.

mod support;

use std::sync::Arc;
use std::time::Instant;

use quelea_data::bleu::bleu;
use quelea_data::loader::BatchSource;
use quelea_data::text::{Corpus, PairBatch, PairBatches, SentencePairs, Vocabulary, plain};
use support::shared;

#[test]
fn multi30k_is_read_encoded_and_decoded_without_loss() {
    let Some(folder) = shared("multi30k") else { return };
    let train = SentencePairs::read(&folder, "train", "en", "de").expect("whole");
    assert_eq!(train.sources.len(), 29_000);
    let began = Instant::now();
    let texts = train.sources.iter().chain(&train.targets).map(String::as_str);
    let vocabulary = Vocabulary::train(texts, 8259);
    println!("8,000 pairs found in {:.2?}", began.elapsed());
    assert_eq!(vocabulary.size(), 8259);
    let began = Instant::now();
    let encoded = vocabulary.encode_all(&train.targets);
    println!("29,000 sentences encoded in {:.2?}", began.elapsed());
    for (tokens, text) in encoded.iter().zip(&train.targets).step_by(97) {
        assert_eq!(vocabulary.decode(tokens), *text);
    }
    let tokens: usize = encoded.iter().map(Vec::len).sum();
    let words: usize = train.targets.iter().map(|line| line.split_whitespace().count()).sum();
    assert!(tokens < words * 3 / 2, "{tokens} tokens for {words} words");
    let corpus = Arc::new(Corpus::new(&train, &vocabulary, 128));
    let all: Arc<[u32]> = (0..corpus.len() as u32).collect();
    let batches = PairBatches::shuffled(corpus, all, 64, 1, 0);
    let (mut batch, mut full, mut padded) = (PairBatch::default(), 0, 0);
    for step in 0..batches.steps_per_epoch() {
        batches.fill(step, &mut batch).expect("in memory");
        padded += batch.targets.len();
        full += batch.targets.iter().filter(|token| **token != 0).count();
    }
    println!("{:.1} % of an epoch is padding", 100.0 * (1.0 - full as f64 / padded as f64));
    assert!(padded < full * 106 / 100);
}

#[test]
fn bleu_of_a_thousand_sentences_is_that_of_sacrebleu() {
    let Some(folder) = shared("multi30k") else { return };
    let test = SentencePairs::read(&folder, "test_2016_flickr", "en", "de").expect("whole");
    let damaged: Vec<String> = test
        .targets
        .iter()
        .map(|line| {
            let words = line.split(' ').enumerate();
            let kept = words.filter(|(place, _)| place % 7 != 3).map(|(_, word)| word);
            kept.collect::<Vec<&str>>().join(" ")
        })
        .collect();
    let bleu = bleu(&damaged, &[&test.targets]);
    // Printed by tests/bleu/reference.py.
    assert_eq!((bleu.tokens, bleu.reference_tokens), (10_437, 12_106));
    assert!((bleu.score - 60.398_001_404_587_33).abs() < 1e-9, "{bleu:?}");
}

#[test]
fn tiny_shakespeare_is_read_packed_or_by_its_folder() {
    let Some(folder) = shared("tinyshakespeare") else { return };
    let text = plain(&folder).expect("whole");
    assert_eq!(text.train.len() + text.validation.len(), 1_115_394);
    assert!(text.train.starts_with(b"First Citizen:\nBefore we proceed any further"));
    assert_eq!(plain(&folder.join("input.txt.gz")).expect("whole"), text);
}
