use std::time::Instant;
use tch::Device;
use trace_policy::{
    active::Active, config::ModelConfig, engine::*, gates::*, lora::*, model::Model, sampling::Sampling,
};
fn cpu() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse::<f64>().unwrap()
        / 1e9
}
fn main() {
    let arg = |n: usize, d: usize| std::env::args().nth(n).map(|s| s.parse().unwrap()).unwrap_or(d);
    let (threads, slots, prefix, own, mode) = (arg(1, 2), arg(2, 64), arg(3, 800), arg(4, 500), arg(5, 0));
    tch::set_num_threads(threads as i32);
    let c = ModelConfig {
        vocab_size: 1024,
        hidden_size: 192,
        num_hidden_layers: 6,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 32,
        intermediate_size: 512,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        tie_word_embeddings: true,
        max_position_embeddings: 4096,
    };
    let m = Model::random(c, 1, Device::Cpu).unwrap();
    let lora = || {
        Lora::new(m.config(), LoraConfig { rank: 16, alpha: 16.0, targets: Module::ALL.to_vec() }, 1, Device::Cpu)
            .unwrap()
    };
    let one = lora();
    let comp = Composition::new(
        m.config(),
        (0..4).map(|i| Member { name: i.to_string(), lora: lora() }).collect(),
        Router::new(m.config(), 4, Device::Cpu),
    )
    .unwrap();
    let active = match mode {
        0 => Active::Base,
        1 => Active::Adapter(&one),
        _ => Active::Routed(&comp),
    };
    let mut e = Engine::new(EngineConfig { max_slots: slots, kv_budget_bytes: 4 << 30 }, &m);
    let ids = |seed: u64, n: usize| -> Vec<i32> {
        (0..n).map(|i| (trace_policy::sampling::uniform(&[seed, 0, 0, 0], i as u64) * 1024.0) as i32).collect()
    };
    let p = ids(1, prefix);
    for s in 0..slots as u64 {
        let mut context = p.clone();
        context.extend(ids(100 + s, own));
        e.admit(GenRequest {
            id: s,
            session: s,
            context,
            shared_prefix: prefix,
            max_tokens: 100,
            sampling: Sampling::default(),
            stop_ids: vec![],
            stream: [1, s, 0, 0],
        })
        .unwrap();
    }
    let (t, c) = (Instant::now(), cpu());
    e.step(&m, &active, 1).unwrap();
    let (t, c) = (t.elapsed().as_secs_f64(), cpu() - c);
    println!(
        "first step (prefill of {} + {}): {:.3} s, {:.0} tok/s; main-thread cpu {:.3} s",
        prefix,
        own * slots,
        t,
        (prefix + own * slots) as f64 / t,
        c
    );
    let (mut best, mut sum, mut bc) = (f64::MAX, 0.0, f64::MAX);
    for _ in 0..60 {
        let (t, c) = (Instant::now(), cpu());
        e.step(&m, &active, 1).unwrap();
        let (t, c) = (t.elapsed().as_secs_f64(), cpu() - c);
        best = best.min(t);
        bc = bc.min(c);
        sum += t;
    }
    println!(
        "decode: best {:.2} ms = {:.0} tok/s; mean {:.2} ms; best main-thread cpu {:.2} ms = {:.0} tok/s",
        best * 1e3,
        slots as f64 / best,
        sum / 60.0 * 1e3,
        bc * 1e3,
        slots as f64 / bc
    );
}
