// Fits a Gaussian mixture by gradient ascent, one start per thread, and keeps the best.
//
//   aotdiff build samples/gmm.grad -o build
//   c++ -std=c++17 samples/c/gmm.cpp -Ibuild -o gmm build/gmm.so -lm -pthread
//   LD_LIBRARY_PATH=build ./gmm

#include "gmm.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Vector = std::vector<double>;
constexpr std::int64_t d = 2, k = 3, n = 300, below = d * (d - 1) / 2;

void check(int code) {
    if (code != 0) throw std::runtime_error(aotdiff_last_error());
}

// Three clouds of points.
Vector clouds() {
    const double centres[k][d] = {{-3.0, 0.0}, {3.0, 1.0}, {0.0, 4.0}};
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    Vector x;
    for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < d; ++j) x.push_back(centres[i % k][j] + 0.5 * normal(random));
    return x;
}

struct Mixture {
    Vector alpha = Vector(k), mu = Vector(k * d), q = Vector(k * d), l = Vector(k * below);

    double value(const Vector &x) const {
        double result = 0.0;
        check(gmm_objective(alpha.data(), mu.data(), q.data(), l.data(), x.data(), 0, 1.0, k, d, n, &result));
        return result;
    }

    // The gradient; a null pointer is for a cotangent that nobody wants (of x and of gamma here).
    Mixture gradient(const Vector &x) const {
        Mixture g;
        check(gmm_objective_vjp(alpha.data(), mu.data(), q.data(), l.data(), x.data(), 0, 1.0, k, d, n, 1.0,
                                g.alpha.data(), g.mu.data(), g.q.data(), g.l.data(), nullptr, nullptr));
        return g;
    }

    void add(double t, const Mixture &g) {
        const auto axpy = [t](Vector &a, const Vector &b) {
            for (std::size_t i = 0; i < a.size(); ++i) a[i] += t * b[i];
        };
        axpy(alpha, g.alpha), axpy(mu, g.mu), axpy(q, g.q), axpy(l, g.l);
    }
};

double fit(Mixture &m, const Vector &x, unsigned seed) {
    std::mt19937 random(seed);
    for (double &mean : m.mu) mean = std::uniform_real_distribution<double>(-4.0, 4.0)(random);
    double value = m.value(x), rate = 1e-3;
    for (int step = 0; step < 300; ++step) {
        const Mixture g = m.gradient(x);
        Mixture next = m;
        next.add(rate, g);
        const double found = next.value(x);
        rate *= found > value ? 1.2 : 0.3;
        if (found > value) m = next, value = found;
    }
    return value;
}

// Largest error of the gradient along one direction, against central differences.
double error(const Mixture &m, const Vector &x) {
    const double h = 1e-6;
    const Mixture g = m.gradient(x);
    Mixture up = m, down = m;
    up.add(h, g), down.add(-h, g);
    double square = 0.0;
    for (const Vector *part : {&g.alpha, &g.mu, &g.q, &g.l})
        for (double v : *part) square += v * v;
    return std::fabs((up.value(x) - down.value(x)) / (2.0 * h) - square) / (1.0 + square);
}

}  // namespace

int main() {
    const Vector x = clouds();
    std::vector<Mixture> mixtures(4);
    Vector values(mixtures.size());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < mixtures.size(); ++t)
        threads.emplace_back([&, t] { values[t] = fit(mixtures[t], x, static_cast<unsigned>(t)); });
    for (std::thread &thread : threads) thread.join();

    std::size_t best = 0;
    for (std::size_t t = 1; t < values.size(); ++t)
        if (values[t] > values[best]) best = t;
    Mixture start;
    start.mu = {-1.0, 0.5, 1.0, 0.0, 0.3, 2.0};
    std::printf("best of %zu: %.1f\n", values.size(), values[best]);
    std::printf("error of the gradient: %s\n", error(start, x) < 1e-6 ? "below 1e-6" : "too large");
    try {
        Mixture wrong;
        check(gmm_objective(wrong.alpha.data(), wrong.mu.data(), wrong.q.data(), wrong.l.data(), x.data(), 0, 1.0, -k,
                            d, n, &values[0]));
    } catch (const std::runtime_error &problem) {
        std::printf("refused: %s\n", problem.what());
    }
    return error(start, x) < 1e-6 && values[best] > -800.0 ? 0 : 1;
}
