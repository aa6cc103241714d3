//! Networks that learn from text.

use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_data::text::{Corpus, SentencePairs, Vocabulary, plain};
use quelea_engine::language::NextByte;
use quelea_engine::models::{LanguageSize, RecurrentSize, TransformerSize};
use quelea_engine::translate::{Translate, TranslateOptions, Translations};

use super::network::{
    self, ACCUMULATE, BATCHES, DATA, SUBSET, TEST_SUBSET, batch, located, refused,
};
use super::{Built, TaskEntry, TaskRequest};
use crate::error::RequestError;

const fn whole(name: &'static str, default: u64, max: u64, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Whole { default, min: 1, max }, help }
}

const DROPOUT: OptionSpec = OptionSpec {
    name: "dropout",
    kind: OptionKind::Real { default: 0.1, min: 0.0, max: 0.9 },
    help: "share of numbers that are dropped in training",
};

/// `multi30k-transformer`.
pub const MULTI30K_TRANSFORMER: TaskEntry = TaskEntry {
    meta: Meta {
        name: "multi30k-transformer",
        summary: "an encoder–decoder Transformer (Vaswani et al. 2017) that translates Multi30k; \
              small unless told otherwise (the paper's base: width 512, layers 6, heads 8, \
              inner 2048)",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            DATA,
            batch(64),
            whole("width", 64, 1 << 14, "numbers of a token; a multiple of twice heads"),
            whole("layers", 2, 1 << 10, "layers of the encoder, and as many of the decoder"),
            whole("heads", 4, 1 << 10, "heads of every attention"),
            whole("inner", 256, 1 << 16, "neurons of the hidden layers"),
            DROPOUT,
            OptionSpec {
                name: "shared",
                kind: OptionKind::Flag(true),
                help: "whether source, target and output have one embedding",
            },
            OptionSpec {
                name: "smoothing",
                kind: OptionKind::Real { default: 0.1, min: 0.0, max: 0.9 },
                help: "share of the goal that is spread over all tokens",
            },
            OptionSpec {
                name: "vocabulary",
                kind: OptionKind::Whole { default: 4000, min: 300, max: 1 << 20 },
                help: "tokens of the byte-pair vocabulary of both languages",
            },
            OptionSpec {
                name: "from",
                kind: OptionKind::Choice(&["en", "de"]),
                help: "language to translate",
            },
            OptionSpec {
                name: "to",
                kind: OptionKind::Choice(&["de", "en"]),
                help: "language to translate into",
            },
            OptionSpec {
                name: "length",
                kind: OptionKind::Whole { default: 64, min: 4, max: 1 << 14 },
                help: "tokens of the longest sentence; longer ones are cut",
            },
            OptionSpec {
                name: "bleu",
                kind: OptionKind::Whole { default: 100, min: 0, max: 1 << 32 },
                help: "held-out sentences that are translated for BLEU; 0 = none",
            },
            ACCUMULATE,
            BATCHES,
            SUBSET,
            TEST_SUBSET,
        ],
    },
    extras: &[],
    build: build_transformer,
};

/// `shakespeare-lm`.
pub const SHAKESPEARE_LM: TaskEntry = TaskEntry {
    meta: Meta {
        name: "shakespeare-lm",
        summary: "a decoder-only language model of bytes, on the works of Shakespeare or any text",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            DATA,
            batch(16),
            whole("context", 64, 1 << 14, "bytes that the model sees at a time"),
            whole("width", 64, 1 << 14, "numbers of a byte; a multiple of twice heads"),
            whole("layers", 2, 1 << 10, "layers"),
            whole("heads", 4, 1 << 10, "heads of every attention"),
            DROPOUT,
            ACCUMULATE,
            BATCHES,
            SUBSET,
            TEST_SUBSET,
        ],
    },
    extras: &[],
    build: build_language,
};

/// `shakespeare-lstm`.
pub const SHAKESPEARE_LSTM: TaskEntry = TaskEntry {
    meta: Meta {
        name: "shakespeare-lstm",
        summary: "a recurrent language model of bytes (layers of LSTM), on the works of Shakespeare or any text",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            DATA,
            batch(16),
            whole("context", 64, 1 << 14, "bytes over which gradients are carried back"),
            whole("width", 64, 1 << 14, "numbers of a byte, and of the state of every layer"),
            whole("layers", 2, 1 << 10, "layers"),
            DROPOUT,
            ACCUMULATE,
            BATCHES,
            SUBSET,
            TEST_SUBSET,
        ],
    },
    extras: &[],
    build: build_recurrent,
};

fn size(options: &Options, key: &str) -> usize {
    options.whole(key) as usize
}

fn build_transformer(request: &TaskRequest) -> Result<Built, RequestError> {
    let options = &request.values.options;
    let (from, to) = (options.text("from"), options.text("to"));
    if from == to {
        let problem = "is the language to translate from as well";
        return Err(RequestError::field("task.to", toml::Value::from(to), problem));
    }
    let data = located(request, "multi30k", |folder| {
        let train = SentencePairs::read(folder, "train", from, to)?;
        let test = SentencePairs::read(folder, "test_2016_flickr", from, to)?;
        let tokens = size(options, "vocabulary");
        let cache = folder.join(format!("vocabulary.{from}-{to}.{tokens}"));
        let vocabulary = Vocabulary::cached(&cache, &[&train.sources, &train.targets], tokens);
        let train = Corpus::new(&train, &vocabulary, size(options, "length"));
        Ok(Translations { train, test, vocabulary })
    })?;
    let translation = TranslateOptions {
        smoothing: options.real("smoothing"),
        length_max: size(options, "length"),
        bleu: size(options, "bleu"),
    };
    let model = TransformerSize {
        vocabulary: data.vocabulary.size(),
        width: size(options, "width"),
        layers: size(options, "layers"),
        heads: size(options, "heads"),
        inner: size(options, "inner"),
        dropout: options.real("dropout"),
        shared: options.flag("shared"),
    };
    let problem = Translate::new(model, data, translation, &network::work_options(request))
        .map_err(|error| refused(request, &error))?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}

fn build_language(request: &TaskRequest) -> Result<Built, RequestError> {
    let options = &request.values.options;
    let text = located(request, "tiny-shakespeare", plain)?;
    let model = LanguageSize {
        vocabulary: 256,
        context: size(options, "context"),
        width: size(options, "width"),
        layers: size(options, "layers"),
        heads: size(options, "heads"),
        dropout: options.real("dropout"),
    };
    let problem = NextByte::new(model, text, &network::work_options(request))
        .map_err(|error| refused(request, &error))?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}

fn build_recurrent(request: &TaskRequest) -> Result<Built, RequestError> {
    let options = &request.values.options;
    let text = located(request, "tiny-shakespeare", plain)?;
    let model = RecurrentSize {
        vocabulary: 256,
        width: size(options, "width"),
        layers: size(options, "layers"),
        dropout: options.real("dropout"),
    };
    let context = size(options, "context");
    let problem = NextByte::recurrent(model, context, text, &network::work_options(request))
        .map_err(|error| refused(request, &error))?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}
