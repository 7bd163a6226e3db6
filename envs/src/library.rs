//! The Python environments that come with the program: one for each of the four capabilities that the base policy
//! lacks, and a decoy for one that it has.

/// Name and text of each file of `envs/library/`.
pub const LIBRARY: [(&str, &str); 5] = [
    ("structured_data_reasoning", include_str!("../library/structured_data_reasoning.py")),
    ("multi_step_completion", include_str!("../library/multi_step_completion.py")),
    ("precondition_verification", include_str!("../library/precondition_verification.py")),
    ("tool_calling_precision", include_str!("../library/tool_calling_precision.py")),
    ("information_gathering", include_str!("../library/information_gathering.py")),
];
