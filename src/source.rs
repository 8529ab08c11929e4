//! What a command is given: a config, a checkpoint folder or IR text, turned into a module.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use unglue_ir::lines::GraphLines;
use unglue_ir::module::Module;
use unglue_models::config::FieldPolicy;
use unglue_models::glm5_next::{self, BuildOptions, Config};
use unglue_models::{Activation, Trunk};
use unglue_runtime::manifest;

use crate::cli;
use crate::error::CliError;
use crate::tap;

/// A trunk, or a module from IR text.
pub struct Source {
    pub module: Module,
    /// `None` for IR text.
    pub trunk: Option<Trunk>,
    /// Per body: where the model, or the IR text, declares it.
    #[cfg_attr(not(feature = "compile"), allow(dead_code, reason = "only reports have it"))]
    pub lines: Vec<GraphLines>,
    pub model: manifest::Model,
    /// Folder with the checkpoint, if the input was one.
    pub checkpoint: Option<PathBuf>,
    /// Layers whose completed streams are captured.
    #[cfg_attr(not(feature = "compile"), allow(dead_code, reason = "only bundles keep it"))]
    pub aux: Vec<u32>,
}

/// Largest config or IR text that is read.
const MAX_TEXT: u64 = 64 << 20;

pub fn read_text(path: &Path) -> Result<String, CliError> {
    let len = std::fs::metadata(path).map_err(|e| CliError::input(path, e))?.len();
    if len > MAX_TEXT {
        return Err(CliError::input(path, format!("{len} bytes; a config or IR text has at most {MAX_TEXT}")));
    }
    std::fs::read_to_string(path).map_err(|e| CliError::input(path, e))
}

/// `0-3`, `0-2,7` to ranges.
fn layer_ranges(text: &str) -> Result<Vec<RangeInclusive<u32>>, CliError> {
    let wrong = || CliError::Usage { rule: "--layers", found: text.into(), needed: "A-B or a list like 0-2,7".into() };
    text.split(',')
        .map(|part| {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            let (a, b) = (a.trim().parse().map_err(|_| wrong())?, b.trim().parse().map_err(|_| wrong())?);
            if a > b { Err(wrong()) } else { Ok(a..=b) }
        })
        .collect()
}

/// Reads a config, a checkpoint folder, or IR text.
pub fn load(input: &Path, options: &cli::Trunk) -> Result<Source, CliError> {
    let mut source = untapped(input, options)?;
    tap::add(&mut source.module, &options.tap)?;
    Ok(source)
}

fn untapped(input: &Path, options: &cli::Trunk) -> Result<Source, CliError> {
    if input.extension().is_some_and(|e| e == "ir") {
        return ir_text(input);
    }
    let folder = input.is_dir();
    let path = if folder { input.join("config.json") } else { input.to_path_buf() };
    let config = Config::from_json(&read_text(&path)?, &FieldPolicy { allow: options.allow_field.clone() })?;
    let build = BuildOptions {
        layers: options.layers.as_deref().map(layer_ranges).transpose()?,
        dtype: match options.dtype {
            cli::Dtype::Bf16 => Activation::Bf16,
            cli::Dtype::F32 => Activation::F32,
        },
        aux: options.aux.clone(),
        expert_slots: options.expert_slots,
    };
    let trunk = glm5_next::trunk(&config, &build)?;
    let layers = trunk.module.calls.iter().filter_map(|c| c.layer).collect::<std::collections::BTreeSet<u32>>();
    let model = manifest::Model {
        name: trunk.module.name.clone(),
        hidden_size: config.kda.width,
        vocab_size: config.vocab,
        streams: config.hc.streams,
        layers: layers.into_iter().collect(),
    };
    Ok(Source {
        module: trunk.module.clone(),
        lines: trunk.body_lines.clone(),
        trunk: Some(trunk),
        model,
        checkpoint: folder.then(|| input.to_path_buf()),
        aux: options.aux.clone(),
    })
}

fn ir_text(input: &Path) -> Result<Source, CliError> {
    let file = input.file_name().unwrap_or_default().to_string_lossy();
    let (module, lines) = unglue_ir::text::parse_module_with_lines(&read_text(input)?, &file)?;
    let logits = module.outputs.iter().find(|o| o.name == "logits");
    let shape = logits.and_then(|o| {
        let call = module.calls.get(o.call as usize)?;
        let body = module.bodies.get(call.body as usize)?;
        let (_, v) = body.outputs.get(o.output as usize)?;
        body.ty(*v).tensor().map(|t| t.shape.clone())
    });
    let vocab = shape.and_then(|s| s.last().and_then(|d| d.fixed()));
    let Some(vocab) = vocab else {
        return Err(CliError::input(input, "the module has no output `logits` of shape [L, V]; name one"));
    };
    let layers = module.calls.iter().filter_map(|c| c.layer).collect::<std::collections::BTreeSet<u32>>();
    let model = manifest::Model {
        name: module.name.clone(),
        hidden_size: embedding_width(&module).unwrap_or(1),
        vocab_size: vocab,
        streams: 1,
        layers: layers.into_iter().collect(),
    };
    Ok(Source { module, trunk: None, lines, model, checkpoint: None, aux: vec![] })
}

/// Width of the token embedding.
fn embedding_width(module: &Module) -> Option<u64> {
    let embed = |g: &unglue_ir::graph::Graph| {
        let id = g.ids().find(|id| g.node(*id).op == unglue_ir::op::Op::EmbedRows)?;
        g.ty(id).tensor()?.shape.last()?.fixed()
    };
    module.bodies.iter().find_map(embed)
}

/// Where a bundle says which checkpoint folder it was compiled from: next to it, since bundles hold no host facts.
const ORIGIN_SUFFIX: &str = ".origin";

/// Path of the file that remembers the checkpoint folder of a bundle.
pub fn origin_path(bundle: &Path) -> std::path::PathBuf {
    let mut name = bundle.file_name().unwrap_or_default().to_os_string();
    name.push(ORIGIN_SUFFIX);
    bundle.with_file_name(name)
}
