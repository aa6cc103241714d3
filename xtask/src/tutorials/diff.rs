//! The script that a page shows as a diff: what a reader who has such a script ends up with.

use anyhow::{Result, ensure};

/// What the script of a reader has before its training: a model, an optimizer, batches.
const BEFORE: &str = "\
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1)
loader = [(x, x.sum(1, keepdim=True)) for x in torch.randn(50, 8, 4)]
";
/// What stands for `...` in its loop.
const LOOP: &str = "    inputs, targets = batch
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
";

/// The whole script after the diff was applied.
pub(super) fn applied(diff: &str) -> Result<String> {
    let mut script = BEFORE.to_string();
    for line in diff.lines() {
        let kept = line.strip_prefix('+').or_else(|| line.strip_prefix(' '));
        let Some(kept) = kept else {
            ensure!(line.is_empty() || line.starts_with('-'), "no line of a diff: {line}");
            continue;
        };
        if kept.trim_start().starts_with("...") {
            script.push_str(LOOP);
        } else {
            script.extend([kept, "\n"]);
        }
    }
    script.push_str("assert loss < 0.5, loss\n");
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_and_kept_lines_are_the_script_and_removed_ones_are_not() {
        let script =
            applied("+import a\n model = b\n-old()\n for batch in loader:\n     ...  # as it is\n");
        let script = script.expect("a diff");
        assert!(
            script.contains(
                "import a\nmodel = b\nfor batch in loader:\n    inputs, targets = batch\n"
            )
        );
        assert!(!script.contains("old") && !script.contains("..."));
        assert!(applied("not of a diff\n").is_err());
    }
}
